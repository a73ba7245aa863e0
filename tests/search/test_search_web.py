"""The functions behind the search page, and the page in a browser where Chromium is installed."""

import asyncio
import base64
import hashlib
import io
import json
import re

import browser
import numpy as np
import pytest
from aiohttp import web
from page_reader import Page
from PIL import Image
from running_app import running
from search_data import ColorEmbedder, png, write_folder

from mural_tf.search import build, collect
from mural_tf.search.index import Index, take
from mural_tf.search.items import IMAGES, TEXTS, Item
from mural_tf.search.server import search_page
from mural_tf.search.server.rest_json import BadRequest


@pytest.fixture
def index(tmp_path):
    folder = write_folder(tmp_path / "images")
    return build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder)]))


PLAIN = {"caption": "", "language": "", "has_image": True, "fields": {}, "found_by": {}, "alike": 0}


def test_answers_name_rows_and_no_paths(index, tmp_path):
    answer = search_page.answer(index, ColorEmbedder(), "red", 2)
    assert json.loads(json.dumps(answer)) == {
        "sentence": "red", "kind": "images", "count": 4, "matching": 4, "total": 4, "index": "", "hits": [
            {"rank": 1, "score": 1.0, "row": 2, "name": "red.png", **PLAIN},
            {"rank": 2, "score": 0.8, "row": 0, "name": "orange.PNG", **PLAIN},
        ],
    }  # fmt: skip
    places = build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [f"{tmp_path}/images/*.png"]))
    assert str(tmp_path) not in json.dumps(search_page.answer(places, ColorEmbedder(), "red"))


def test_answers_of_texts(tmp_path):
    items = [Item("rot", language="de"), Item("أحمر/x", language="ar")]
    index = Index(items, np.eye(3, dtype=np.float32)[:2], take(ColorEmbedder()), TEXTS)
    hits = search_page.answer(index, ColorEmbedder(), "red")["hits"]
    shown = [(hit["caption"], hit["language"], hit["has_image"]) for hit in hits]
    assert shown == [("rot", "de", False), ("أحمر/x", "ar", False)]
    with pytest.raises(ValueError, match="without an image"):
        search_page.thumbnail(index, 0)


def test_page_allows_its_own_script_only():
    hostile = '"><script>alert(1)</script>'
    page = Page(search_page.page_html(["sw", hostile, ""], [hostile, "é"]), has_script=True)
    assert [option["value"] for option in page.all("option")] == ["", "sw", hostile]
    assert page.text.count(hostile) == 2
    (script,) = re.findall("<script>(.*?)</script>", page.source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.source
    assert "innerHTML" not in script and not re.search(r"https?://", page.source)


@pytest.fixture
def shop(tmp_path):
    """Thirty pictures of a folder, from red to blue, with captions in two scripts and two brands."""
    items = [Item("a<b>.png", str(tmp_path / "0.png"), captions=(("ar", 'دائرة <b>"حمراء"</b>'),))]
    items += [Item(f"{n}.png", str(tmp_path / f"{n}.png"), captions=(("ja", f"風船 {n}"),),
                   fields={"brand": "acme" if n % 2 else "Zeta & Söhne", "page": f"https://example.org/{n}"})
              for n in range(1, 29)]  # fmt: skip
    items.append(Item("gone.png", str(tmp_path / "gone.png")))
    angles = np.linspace(0, np.pi / 2, 30)
    for n, angle in enumerate(angles[:-1]):
        (tmp_path / f"{n}.png").write_bytes(png((int(250 * np.cos(angle)), 0, int(250 * np.sin(angle))), (40, 30)))
    vectors = np.stack([np.cos(angles), np.zeros(30), np.sin(angles)], axis=1).astype(np.float32)
    return Index(items, vectors, take(ColorEmbedder()))


SEEN = "document.querySelectorAll('#results > li').length"
FIRST = "#results > li:first-child "
SENTENCE, NAME = "input[name=sentence]", f"{FIRST}figure > p:last-of-type"


async def use_the_page(url, tmp_path):
    async with browser.open_page(f"{url}/", tmp_path / "profile") as page:
        await page.until("location.pathname === '/search' && document.readyState === 'complete'")
        # It begins with pictures, examples and filters with counts; languages have names.
        await page.until(f"{SEEN} === 20 && !document.getElementById('facets').hidden")
        assert (await page.text("#status")) == ["30 images"] and "風船" in (await page.text("#examples"))[0]
        assert "Zeta & Söhne (14)" in (await page.text("#facets"))[0]
        names = "[...document.querySelectorAll('select[name=language] option')].map((one) => one.textContent).join()"
        assert await page.look(names) == "any,Arabic,Japanese"
        # Typing, and what others wrote is shown, not obeyed.
        await page.type(SENTENCE, "red")
        await page.until(f"{SEEN} === 20")
        await page.until("document.querySelector('#status').innerText === 'Of 30 images, the closest first.'")
        assert 'دائرة <b>"حمراء"</b>' in (await page.text(FIRST))[0]
        assert await page.look("document.querySelectorAll('b').length") == 0
        assert await page.look(f"document.querySelector('{FIRST}img').lang") == "ar"
        # More.
        await page.click("#more")
        await page.until(f"{SEEN} === 30 && document.getElementById('more').hidden")
        assert "k=40" in await page.look("location.search") and "gone.png" in (await page.text("#results > li"))[29]
        await page.until("[...document.querySelectorAll('.missing')].length === 1")  # the picture that is gone
        # A filter by a click, and the way back; a filter of the list.
        await page.click("#results > li:nth-child(2) .row button")
        await page.until(f"{SEEN} === 14 && document.querySelectorAll('#filters button').length === 1")
        assert (await page.text("#filters")) == ["brand=acme ×"]
        await page.back()
        await page.until(f"{SEEN} === 30 && !document.querySelector('#filters button')")
        await page.look("document.getElementById('facets').open = true")
        await page.until("document.querySelectorAll('#facets input').length === 2")
        await page.click("#facets input")
        await page.until(f"{SEEN} === 14")
        await page.click("#filters button")
        await page.until(f"{SEEN} === 20")
        # Other scripts.
        await page.type(SENTENCE, "青い風船")
        await page.until(f"document.querySelector('{NAME}').innerText === 'gone.png'")
        await page.type(SENTENCE, "أحمر")
        await page.until(f"document.querySelector('{NAME}').innerText === 'a<b>.png'")
        assert "أحمر" in await page.look("document.title")
        assert await page.look(f"getComputedStyle(document.querySelector('{SENTENCE}')).direction") == "rtl"
        await page.back()
        await page.until(f"document.querySelector('{SENTENCE}').value === '青い風船'")
        await page.until(f"document.querySelector('{NAME}').innerText === 'gone.png'")
        # The viewer: arrow keys go on, and Escape leaves it.
        await page.click("#results > li:nth-child(3) a")
        await page.until("document.querySelector('#viewer p.name').innerText.startsWith('3 of 20')")
        for key, place in (("ArrowRight", 4), ("ArrowLeft", 3)):
            await page.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
            await page.until(f"document.querySelector('#viewer p.name').innerText.startsWith('{place} of 20')")
        await page.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27)
        await page.until("!document.getElementById('viewer').open")
        # Like a result.
        await page.click("#results > li:nth-child(3) .row button:last-child")
        await page.until("location.search === '?like=27' && !!document.querySelector('#asked img')")
        closest = "[...document.querySelectorAll('.name')].slice(0, 2).map((found) => found.innerText).sort().join()"
        await page.until(f"{closest} === '26.png,28.png'")
        assert "27.png" not in await page.text(".name")
        # Like a picture, also after the page was left; and a file that is none.
        (tmp_path / "mine.webp").write_bytes(webp((0, 0, 250)))
        await page.choose_file("input[type=file]", tmp_path / "mine.webp")
        await page.until(
            f"location.search === '?picture=' && document.querySelector('{NAME}').innerText === 'gone.png'"
        )
        await page.type(SENTENCE, "red")
        await page.until(f"document.querySelector('{NAME}').innerText === 'a<b>.png'")
        await page.back()
        await page.until(f"document.querySelector('{NAME}').innerText === 'gone.png'")
        assert await page.look("document.querySelector('#asked img').src.startsWith('data:image/jpeg')")
        (tmp_path / "mine.png").write_bytes(b"none")
        await page.choose_file("input[type=file]", tmp_path / "mine.png")
        await page.until("document.querySelector('#status').innerText.startsWith('This browser cannot read')")
        # A small screen.
        await page.size(360, 640)
        await page.type(SENTENCE, "<img src=x onerror=alert(1)>" + "x" * 200)
        await page.until("document.title.startsWith('<img') && " + SEEN + " === 20")
        (tmp_path / "page.png").write_bytes(await page.screenshot())
        wide = "[...document.querySelectorAll('body *')].filter((found) => found.getBoundingClientRect().right > 360)"
        assert await page.look(f"{wide}.map((found) => found.outerHTML)") == []
        assert await page.look("document.documentElement.scrollWidth") <= 360
        # The question and the first pictures share the screen.
        assert await page.look("document.querySelector('#results > li').getBoundingClientRect().top") < 400
        # What the server refuses is said.
        await page.look("go({ filters: ['brand'] })")
        await page.until("document.querySelector('#status').innerText.startsWith('No answer: The filter')")
        # What passes no filter, what to take away, and a server that is off.
        await page.look("go({ filters: ['brand=none'] })")
        await page.until("document.querySelector('#status').innerText === 'Nothing fits brand=none.'")
        await page.click("#relax button")
        await page.until(f"{SEEN} === 20 && document.getElementById('results').style.opacity === '1'")
        # While another question is asked, former answers are pale.
        await page.look("window.fetch = () => new Promise((_, reject) => { window.fail = reject; })")
        await page.type(SENTENCE, "red")
        await page.until(f"{SEEN} === 20 && document.getElementById('results').style.opacity === '0.4'")
        await page.look("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
        await page.type(SENTENCE, "red")
        no_answer = "No answer: the server does not answer"
        await page.until(f"document.querySelector('#status').innerText.startsWith('{no_answer}')")


def webp(color):
    buffer = io.BytesIO()
    Image.new("RGB", (900, 700), color).save(buffer, "WEBP")
    return buffer.getvalue()


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium is installed: the search page was not driven")
def test_the_page_in_a_browser(shop, tmp_path):
    app = web.Application(middlewares=[errors_as_json])
    app.add_routes(search_page.search_routes(shop, ColorEmbedder(), ["ar", "ja"]))
    with running(app) as server:
        asyncio.run(use_the_page(f"http://127.0.0.1:{server.port}", tmp_path))


@web.middleware
async def errors_as_json(request, handler):
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response({"error": str(error)}, status=400)
