"""The search page in a browser where Chromium is installed: a thing is found, narrowed and come back to."""

import asyncio
import io
import pathlib

import browser
import numpy as np
import pytest
from PIL import Image
from running_app import running
from search_data import ColorEmbedder, png, shop

from mural_search.index import Index, take_fingerprint
from mural_search.items import Item
from mural_search.server.app import create_app
from mural_search.server.routes import search_routes

AXE = pathlib.Path(__file__).resolve().parents[2] / "node_modules/axe-core/axe.min.js"  # npm install axe-core
LINKS = "[...document.querySelectorAll('a')].filter((one) => one.textContent.includes({!r}))[0].click()"
SEEN = "document.querySelectorAll('.grid > li').length"
CAPTION, SENTENCE = ".grid > li:first-child .caption", "input[name=sentence]"
LOADED = "document.readyState === 'complete'"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """242 products of twenty columns, from red to blue; one of them with a hostile caption in Arabic, one gone."""
    folder, items = tmp_path_factory.mktemp("shop"), []
    angles = np.linspace(0, np.pi / 2, 242)
    for n, item in enumerate(shop()):
        captions = (("ar", 'دائرة <b>"حمراء"</b>'),) if n == 0 else item.captions
        items.append(Item(f"{n}", str(folder / f"{n}.png"), captions=captions, fields=item.fields))
        if n != 241:
            color = int(250 * np.cos(angles[n])), 0, int(250 * np.sin(angles[n]))
            (folder / f"{n}.png").write_bytes(png(color, (40, 30)))
    vectors = np.stack([np.cos(angles), 0 * angles, np.sin(angles)], axis=1).astype(np.float32)
    return Index(items, vectors, take_fingerprint(ColorEmbedder()))


async def go(page, expression="", sentence=""):
    """Follows a link or sends a form, or types a sentence, and waits for the next page."""
    await page.look("window.isOld = true")
    await (page.type(SENTENCE, sentence) if sentence else page.look(expression))
    await page.until(f"!window.isOld && {LOADED}")


BEYOND = "[...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > 360).length"
PRICE = "document.querySelector('input[name=\"from.Regular price\"]')"


async def use_the_page(url, tmp_path):
    async with browser.open_page(f"{url}/", tmp_path / "profile") as page:
        await page.until(f"location.pathname === '/search' && {SEEN} === 20")
        assert "242 pictures." in (await page.text("[role=status]"))[0]
        # Find; what others wrote is shown, not obeyed, and Arabic runs from the right.
        await go(page, sentence="rot")
        assert await page.text(CAPTION) == ['دائرة <b>"حمراء"</b>']
        assert await page.look(f"getComputedStyle(document.querySelector('{CAPTION}')).direction") == "rtl"
        assert await page.look(f"document.querySelector('{CAPTION}').lang") == "ar"
        await page.until("[...document.images].every((one) => !one.complete || one.naturalWidth > 0)")
        # Narrow, by a value and by a range.
        await go(page, LINKS.format("Bolt"))
        assert await page.text("ul.chosen a") == ["Brand=Bolt ×"]
        assert "The closest of 61 pictures to “rot” come first" in (await page.text("[role=status]"))[0]
        await page.look(f"{PRICE}.value = '200'")
        await go(page, f"{PRICE}.form.requestSubmit()")
        assert "The closest of 13 pictures" in (await page.text("[role=status]"))[0]
        assert await page.look(f"{PRICE}.value") == "200" and await page.look(SEEN) == 13
        # An item's own view, and back, twice.
        await go(page, "document.querySelector('.card').click()")
        assert await page.text("article h2") == ["white shoe number 193 by Bolt"]
        assert "Allow customer reviews?" in (await page.text("dl"))[0]
        await go(page, LINKS.format("Back to the results"))
        assert await page.look(SEEN) == 13 and await page.look(f"document.querySelector('{SENTENCE}').value") == "rot"
        await page.back()
        await page.until("!!document.querySelector('article')")
        # Like this, and without a filter.
        await go(page, LINKS.format("Like this"))
        assert "193" not in "".join(await page.text(".caption")) and await page.look(SEEN) == 12
        await go(page, LINKS.format("Brand=Bolt ×"))
        await go(page, LINKS.format("Regular price>=200 ×"))
        assert (await page.look("location.search")).startswith("?like=193-") and await page.look(SEEN) == 20
        await go(page, LINKS.format("More →"))
        assert "offset=20" in await page.look("location.search") and await page.look(SEEN) == 20
        # Answers while somebody types, on the same page.
        await page.call("Page.navigate", url=f"{url}/search?filter=Brand%3DBolt")
        await page.until(f"location.search === '?filter=Brand%3DBolt' && {LOADED}")
        await page.look(f"window.isOld = true; document.querySelector('{SENTENCE}').focus()")
        await page.call("Input.insertText", text="blue shoe")
        await page.until("document.querySelectorAll('.caption mark').length > 9")
        assert await page.look("window.isOld && location.search") == "?filter=Brand%3DBolt&sentence=blue+shoe"
        assert (await page.text("[role=status]"))[0] == "The closest of 61 pictures to “blue shoe” come first."
        # Other scripts, and the way back.
        await go(page, sentence="青い風船")
        assert await page.text(CAPTION) == ["blue shoe number 241 by Bolt"]
        await page.until("[...document.images].some((one) => one.complete && !one.naturalWidth)")  # it is gone
        await go(page, sentence="أحمر")
        assert await page.look(f"getComputedStyle(document.querySelector('{SENTENCE}')).direction") == "rtl"
        await page.back()
        await page.until("document.querySelector('[role=status]').innerText.includes('青い風船')")
        # By a picture, which is an address then.
        buffer = io.BytesIO()
        Image.new("RGB", (900, 700), (0, 0, 250)).save(buffer, "WEBP")
        (tmp_path / "mine.webp").write_bytes(buffer.getvalue())
        await page.look("document.querySelector('.ways').open = true")
        await page.choose_file("input[type=file]", tmp_path / "mine.webp")
        await go(page, "document.querySelector('input[type=file]').form.requestSubmit()")
        assert await page.text(CAPTION) == ["blue shoe number 241 by Bolt"]
        assert "?picture=" in await page.look("location.search")
        # A small screen, in both lights: the question and the first pictures share it; filters open and close.
        for scheme in ("light", "dark"):
            await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            await page.size(360, 640)
            await go(page, sentence="<img src=x onerror=alert(1)>" + "x" * 200)
            await page.until(f"document.title.startsWith('<img') && {SEEN} === 20")
            assert await page.look(BEYOND) == 0  # nothing goes beyond the screen
            assert await page.look("document.documentElement.scrollHeight") < 4500
            assert await page.look("document.querySelector('.grid > li').getBoundingClientRect().top") < 400
            assert await page.look("getComputedStyle(document.querySelector('aside')).display") == "none"
            await page.click("label[for]")
            await page.until("getComputedStyle(document.querySelector('aside')).display === 'block'")
            assert await page.look(BEYOND) == 0  # nothing goes beyond the screen
            if AXE.is_file():
                await page.call("Page.setBypassCSP", enabled=True)
                for path in ("/search?sentence=red&filter=Brand%3DBolt", "/search?item=3", "/search?sort=x", "/search"):
                    await page.call("Page.navigate", url=url + path)
                    await page.until(f"location.href.endsWith({path!r}) && {LOADED}")
                    await page.look(AXE.read_text() + ";0")
                    found = await page.look("axe.run().then((found) => found.violations.map((one) => one.id))")
                    assert found == [], path


@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium is installed: the search page was not driven")
def test_the_page_in_a_browser(index, tmp_path):
    with running(create_app(search_routes(index, ColorEmbedder()))) as server:
        asyncio.run(use_the_page(f"http://127.0.0.1:{server.port}", tmp_path))
