"""The functions behind the search page, and the page in a browser where Chromium is installed."""

import base64
import hashlib
import http.server
import io
import json
import re
import shutil
import subprocess
import threading
import urllib.parse

import numpy as np
import pytest
from PIL import Image
from search_data import ColorEmbedder, png, write_folder

from mural_tf.search import build, collect
from mural_tf.search.index import Index, take
from mural_tf.search.items import IMAGES, TEXTS, Item
from mural_tf.serve import search_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def index(tmp_path):
    folder = write_folder(tmp_path / "images")
    return build.index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder)]))


def test_answers_name_rows_and_no_paths(index, tmp_path):
    answer = search_page.answer(index, ColorEmbedder(), "red", 2)
    assert json.loads(json.dumps(answer)) == {
        "sentence": "red", "kind": "images", "count": 4, "hits": [
            {"rank": 1, "score": 1.0, "row": 2, "name": "red.png", "caption": "", "language": "", "has_image": True},
            {"rank": 2, "score": 0.8, "row": 0, "name": "orange.PNG", "caption": "", "language": "", "has_image": True},
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


@pytest.mark.parametrize("sentence, k, message", [
    ("  ", 5, "empty"), ("red", 0, "between 1 and 100"), ("red", 101, "between 1 and 100"), ("x" * 2001, 5, "2001"),
])  # fmt: skip
def test_unusable_questions_are_named(index, sentence, k, message):
    with pytest.raises(ValueError, match=message):
        search_page.answer(index, ColorEmbedder(), sentence, k)


def test_thumbnails_of_rows(index):
    image = np.array(Image.open(io.BytesIO(search_page.thumbnail(index, 2)))).astype(int)
    assert np.abs(image - [250, 0, 0]).max() < 8
    for row in (-1, 4, 10**12):
        with pytest.raises(IndexError, match="rows 0 to 3"):
            search_page.thumbnail(index, row)


def test_page_allows_its_own_script_only():
    page = search_page.page_html(["sw", "zh-Hant", '"><script>alert(1)</script>'])
    assert re.findall('<option value="([^"]*)"', page) == ["", "sw", "zh-Hant"] and "alert" not in page
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "{{" not in page
    assert "innerHTML" not in script and not re.search(r"https?://", page)


class Handler(http.server.BaseHTTPRequestHandler):
    """The routes of `search_page`'s docstring under /search."""

    def do_GET(self):  # noqa: N802 - the standard library's name
        place, index = urllib.parse.urlparse(self.path), self.server.index
        if place.path == "/search":
            body, kind = search_page.page_html(["ar", "ja"]).encode(), "text/html; charset=utf-8"
        elif place.path == "/search/answer":
            sentence = urllib.parse.parse_qs(place.query)["sentence"][0]
            body = json.dumps(search_page.answer(index, ColorEmbedder(), sentence)).encode()
            kind = "application/json"
        else:
            self.server.thumbnails.append(place.path)
            body = search_page.thumbnail(index, int(place.path.removeprefix("/search/thumbnail/")))
            kind = "image/jpeg"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("sentence", ["red", "بالون أحمر", "赤い風船", "<img src=x onerror=alert(1)>"])
def test_page_in_a_browser(sentence, tmp_path):
    (tmp_path / "red.png").write_bytes(png((250, 0, 0)))
    items = [Item("a<b>.png", str(tmp_path / "red.png"), captions=(("ar", 'دائرة <b>"حمراء"</b>'),)),
             Item("gone.png", str(tmp_path / "gone.png"))]  # fmt: skip
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.index = Index(items, np.eye(3, dtype=np.float32)[:2], take(ColorEmbedder()))
    server.thumbnails = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/search?{urllib.parse.urlencode({'sentence': sentence})}"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--virtual-time-budget=5000", "--dump-dom", url]  # fmt: skip
    try:
        page = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    finally:
        server.shutdown()
    assert "2 of 2 images, the closest first" in page
    assert 'lang="ar"' in page and "&lt;b&gt;" in page and "a&lt;b&gt;.png" in page  # shown, not obeyed
    assert "<b>" not in page.replace("&lt;b&gt;", "") and 'src="x"' not in page
    assert page.count('src="/search/thumbnail/0"') == 1 and "/search/thumbnail/0" in server.thumbnails
    assert page.count("not available</div>") == 1  # the second image is gone
