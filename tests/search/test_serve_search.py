"""The search page: addresses, answers as JSON and as HTML, pictures, and what is asked wrongly."""

import contextlib
import dataclasses
import functools
import html
import io
import os
import pathlib
import random
import re
import sqlite3
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
import pytest
from odd_pictures import png_of_size
from page_reader import Page, assert_page
from PIL import Image
from refusals import assert_refused
from running_app import ask as ask_server
from running_app import running
from search_data import ColorEmbedder, png, shop, unit, with_captions, write_folder
from snapshots import assert_snapshot

from mural_lite.errors import UserError
from mural_lite.progress import announcing
from mural_search import changes, collect, queries
from mural_search.index import Index, index_in_memory, load_index, sync, take_fingerprint
from mural_search.items import IMAGES, TEXTS, Item, parse_filters
from mural_search.queries import search
from mural_search.server import answers, app, search_page
from mural_search.server.addresses import vector_code, vector_of
from mural_search.server.app import create_app
from mural_search.server.lasting_rows import lasting_row
from mural_search.server.limits import Limits
from mural_search.server.routes import search_routes
from mural_search.server.served_index import ServedIndex
from mural_search.server.settings import PageSettings


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("pictures") / "images")
    lines = ["path\tcaption\tlanguage\tbrand", "red.png\t|a red spot.|\ten\tacme", "blue.png\t\t\tacme", "violet.png",
             "a/orange.PNG"]  # fmt: skip
    (folder / "table.tsv").write_text("\n".join(lines))
    index = index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(folder / "table.tsv")]))
    index.state = "now +"
    return index


STATE = "now%20%2B"  # that `state`, in an address


@contextlib.contextmanager
def asking(index, limits=None, folder="", **settings):
    """Yields `ask(path, body)` → (status, JSON or bytes, headers) over the routes of an index alone."""
    app = create_app(search_routes(index, ColorEmbedder(), PageSettings(**settings), folder), limits)
    with running(app) as server:
        yield functools.partial(ask_server, server.port)


@pytest.fixture(scope="module")
def ask(index):
    with asking(index, Limits(max_request_bytes=10_000, timeout=4.0), title="My <b>") as ask:
        yield ask


def read(answer, status=200):
    """A page that was answered."""
    assert (answer[0], answer[2].get_content_type()) == (status, "text/html"), answer
    return Page(answer[1].decode(), is_served=True)


def hrefs(page):
    return {link["href"] for link in page.all("a")}


def names(answer):
    status, found, _ = answer
    assert status == 200
    return [hit["name"] for hit in found["hits"]]


PAGES = {
    "start": "/search",
    "an_answer": "/search?sentence=rot&filter=brand%3Dacme&offset=1",
    "like_a_row": "/search?like=2",
    "no_answer_of_two_filters": "/search?filter=brand%3Dacme&filter=price%3C5",
    "no_answer_of_one_filter": "/search?filter=brand%3Dnone",
    "an_item": "/search?sentence=rot&filter=brand%3Dacme&item=0",
}


@pytest.mark.parametrize("name", PAGES)
def test_pages(ask, name):
    assert_page(name, ask(PAGES[name]))


def test_ends_of_a_range_become_filters(ask):
    assert ask("/")[0] == 302
    status, _, headers = ask("/search?sentence=rot&from.price=3&to.price=+7&to.year=&offset=20")
    assert (status, headers["Location"]) == (302, "search?sentence=rot&filter=price%3E%3D3&filter=price%3C%3D7")
    answer = ask("/search/answer?sentence=rot&filter=brand%3Dacme&filter=price%3C5")[1]
    assert answer["matching"] == 0 and answer["relax"] == {"brand=acme": 0, "price<5": 2}
    assert ask("/search/answer?k=1&facets=1")[1]["facets"] == {"brand": {"values": {"acme": 2}}}


def test_fields_of_too_many_items_are_those_of_all(ask, index, monkeypatch):
    counted = []
    monkeypatch.setattr(index, "facets", lambda filters=(): counted.append(filters) or {})
    for most in (2, 1):
        monkeypatch.setattr(search_page, "COUNTED", most)
        assert ask("/search?sentence=rot&filter=brand%3Dacme")[0] == 200
    assert [list(map(str, filters)) for filters in counted] == [["brand=acme"], []]


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_nonsense_shows_nothing_but_a_way_to_the_closest(ask, monkeypatch, is_asked_for):
    def surely(*arguments, **named):
        return [dataclasses.replace(one, nothing_fits=True) for one in search(*arguments, **named)]

    monkeypatch.setattr(answers, "search", surely)
    name = f"nothing_fits{'_but_the_closest' * is_asked_for}"
    assert_page(name, ask(f"/search?sentence=rot{'&closest=1' * is_asked_for}"))
    assert ask("/search/answer?sentence=rot")[1]["nothing_fits"]


HOSTILE = '"><script>alert(1)</script>'


def test_what_others_wrote_is_text(tmp_path):
    first = {"x": HOSTILE, "page<i>": "https://a.example/?b=1&c", "js": "javascript:alert(1)"}
    fields = [first, {"x": "b" * 30}] * 2
    captions = ((("ar", f"حمراء {HOSTILE}"),), (('en"><i>', "b"),))
    items = [Item(f"<b>{n}", str(tmp_path / "gone.png"), captions=captions[n % 2], fields=fields[n]) for n in range(4)]
    index = Index(items, np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], take_fingerprint(ColorEmbedder()))
    with asking(index, title=HOSTILE) as ask:
        for path in ("/search?sentence=%22%3E%3Cscript%3E&filter=x%3D%22%3E%3Cscript%3E", "/search?item=0"):
            page = read(ask(path))
            assert not page.all("i", "b") and page.text.count(HOSTILE) >= 2
            assert len(page.all("script")) == ("item=" not in path)  # the page's own
        assert {to for to in hrefs(page) if "://" in to} == {"https://a.example/?b=1&c"}
        assert "javascript:alert(1)" in page.text
        assert {"class": "caption", "dir": "auto", "lang": "ar"} in page.all("h2")


def test_the_page_of_texts(tmp_path):
    items = [Item("rot", language="de"), Item("أحمر/x", language="ar")]
    index = Index(items, np.eye(3, dtype=np.float32)[:2], take_fingerprint(ColorEmbedder()), TEXTS)
    with asking(index) as ask:
        hits = ask("/search/answer?sentence=red")[1]["hits"]
        shown = [(hit["caption"], hit["language"], hit["has_image"]) for hit in hits]
        assert shown == [("rot", "de", False), ("أحمر/x", "ar", False)]
        assert_page("texts", ask("/search?sentence=red"))
        assert ask("/search/picture/0")[0] == 404


def test_a_sentence_finds_its_picture(ask, index):
    plain = {"language": "", "has_image": True, "fields": {}, "found_by": {}, "alike": 0, "caption": ""}
    assert ask("/search/answer?sentence=green&k=1&rank=pictures")[1] == {
        "sentence": "green", "kind": "images", "count": 4, "matching": 4, "total": 4, "index": "now +",
        "hits": [{"rank": 1, "score": 0.6, "row": 3, "name": "orange.PNG", **plain}],
    }  # fmt: skip
    answer = ask("/search/answer?sentence=rot&k=2")
    assert names(answer) == ["red.png", "orange.PNG"] and os.path.dirname(index.describe(0).path) not in str(answer[1])
    red, green, _ = Image.open(io.BytesIO(ask("/search/picture/0?side=240")[1])).convert("RGB").getpixel((2, 2))
    assert red > 200 and green < 50


@pytest.fixture(scope="module")
def shop_index(tmp_path_factory):
    """242 products, every fifth of them without a picture, others as three pictures each."""
    place, vectors = str(tmp_path_factory.mktemp("shop") / "a.png"), np.random.default_rng(1).normal(size=(242, 3))
    pathlib.Path(place).write_bytes(png((250, 0, 0)))
    items = [dataclasses.replace(item, path=place if n % 5 else "", captions=(*item.captions, ("de", f"Schuh {n}")))
             for n, item in enumerate(shop())]  # fmt: skip
    vectors = np.where(np.arange(242)[:, None] % 5, unit(vectors), np.float32(0))
    made = Index(items, vectors, take_fingerprint(ColorEmbedder()))
    with_captions(made, ColorEmbedder())
    made.product = "Position"
    return made


FILTERS = ["Brand=Acme", "Colour=red", "Regular price<100", "Stock>=30", "Weight (kg)>2"]


def test_answers_are_what_python_finds(shop_index):
    """Whatever is asked together: pages are parts of one list, of everything, of a sentence, of what is like a row."""
    draw, model = random.Random(2), ColorEmbedder()
    with asking(shop_index) as ask:
        for n in range(60):
            filters = draw.sample(FILTERS, draw.choice([0, 0, 1, 2]))
            rows = shop_index.rows(parse_filters(filters))
            rows = np.arange(242) if rows is None else rows
            k, offset, sort = map(draw.choice, ([1, 7, 20], [0, 3, 30], ["", "Stock", "-Regular price"]))
            asked = {"filter": filters, "k": k, "offset": offset, "sort": sort}
            asked["language"] = draw.choice(["", "de", "fr"])
            amounts = dict(zip(*shop_index.table.amounts(sort.lstrip("-")))) if sort else {}
            sign = -1 if sort.startswith("-") else 1
            if n % 3 == 0:
                asked["sentence"] = draw.choice(["red", "blue shoe -Bolt", "shoe number 17 by Bolt", "Schuh 3"])
                asked["rank"] = draw.choice(["", "pictures", "texts", "words"])
                query, given = queries.Query(asked["sentence"]), {"filters": parse_filters(filters), "sort": sort}
                result = search(shop_index, model, [query], k, offset=offset, rank=asked["rank"], **given)[0]
                wanted, total = [(hit.rank, hit.row, hit.score) for hit in result.hits], result.total
            elif n % 3 == 1:
                asked["like"] = row = draw.choice([row for row in range(242) if row % 5])
                cosines = shop_index.embeddings @ shop_index.embeddings[row]
                best = sorted((r for r in rows.tolist() if r % 5), key=lambda r: -cosines[r])[:200]
                best = sorted(best[:40], key=lambda r: sign * amounts[r]) if sort else best
                total = len(best) - (row in best)
                best = [r for r in best if r != row][offset : offset + k]
                wanted = [(place, r, cosines[r]) for place, r in enumerate(best, offset + 1)]
            else:
                ordered = sorted(rows.tolist(), key=lambda row: sign * amounts[row]) if sort else rows.tolist()
                wanted = [(place, row, 0.0) for place, row in enumerate(ordered[offset : offset + k], offset + 1)]
                total = len(rows)
            pairs = [(name, one) for name, value in asked.items() for one in np.ravel(value) if str(one)]
            status, answer, _ = ask(f"/search/answer?{urlencode(pairs)}")
            assert status == 200 and (answer["count"], answer["matching"], answer["total"]) == (242, len(rows), total)
            assert [(hit["rank"], hit["row"]) for hit in answer["hits"]] == [hit[:2] for hit in wanted], asked
            np.testing.assert_allclose([hit["score"] for hit in answer["hits"]], [hit[2] for hit in wanted], atol=1e-4)
            for hit in answer["hits"]:
                item = shop_index.describe(hit["row"])
                language, caption = item.captions[asked["language"] == "de"]
                shown = {"language": language, "caption": caption, "fields": item.fields, "name": item.name}
                assert hit == {**hit, **shown, "has_image": hit["row"] % 5 > 0}


OFFERED = re.compile(r'href="(search[^"]*)" dir="auto"[^>]*>(?:✓ )?([^<]*)</a> <span class="quiet">(\d+)')


def test_what_a_page_shows_and_where_its_links_lead(shop_index):
    """The rows of the answer, further pages, and values of fields, which leave as many items as they say."""
    draw = random.Random(4)
    with asking(shop_index) as ask:
        for _ in range(12):
            asked = {("filter", text) for text in draw.sample(FILTERS, draw.choice([0, 1, 1, 2]))}
            asked |= {draw.choice([("sentence", "red shoe"), ("like", str(draw.choice([3, 17]))), ("sort", "Stock")])}
            offset = draw.choice([0, 5, 20, 40])
            query = urlencode([*sorted(asked), ("offset", offset)])
            answer, page = ask(f"/search/answer?{query}&facets=1")[1], read(ask(f"/search?{query}"))
            links = [link["href"] for link in page.all("a")]
            rows = [int(link.rpartition("item=")[2].partition("-")[0]) for link in links if "item=" in link]
            assert rows == [hit["row"] for hit in answer["hits"]]
            shown = [image["src"] for image in page.all("img") if image.get("loading")]
            assert [int(re.search(r"picture/(\d+)", place)[1]) for place in shown] == [row for row in rows if row % 5]
            pages = [max(0, offset - 20)] * (offset > 0) + [offset + 20] * (offset + 20 < answer["total"])
            assert [int(link.rpartition("offset=")[2]) for link in links if "offset=" in link] == pages
            for name in ("Brand", "Stock", "Regular price"):  # to sort by
                assert (f"{name}, lowest first" in page.text) == ("least" in answer["facets"].get(name, {}))
            offered = OFFERED.findall(html.unescape(page.source))
            assert offered or not answer["matching"]
            for to, value, count in offered:
                ((name, text),) = {*parse_qsl(urlsplit(to).query)} ^ asked  # it is taken, or taken away
                assert (name, text.partition("=")[2]) == ("filter", value)
                if draw.random() < 0.2 and not any(other.startswith(text.partition("=")[0]) for _, other in asked):
                    assert ask(f"/search/answer?{to.partition('?')[2]}")[1]["matching"] == int(count), text


def multipart(data, name="picture"):
    """The body of a page's form, and its header."""
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    return head.encode() + data + b"\r\n--b--\r\n", {"Content-Type": "multipart/form-data; boundary=b"}


def test_a_picture_is_a_query_and_of_the_form_an_address_that_can_be_narrowed(ask):
    assert names(ask("/search/answer?k=2", png((0, 0, 200)))) == ["blue.png", "violet.png"]
    assert names(ask("/search/answer?filter=brand%3Dacme", png((200, 150, 0)))) == ["red.png", "blue.png"]
    body, headers = multipart(png((0, 0, 200)))
    status, _, headers = ask("/search/answer", body, headers=headers)
    assert status == 303 and headers["Location"].startswith("../search?picture=")
    address = headers["Location"].removeprefix("..")
    page = read(ask(address))
    assert "Like your picture" in page.text and page.all("img")[0]["src"].startswith("search/picture/1?")
    assert read(ask(address + "&filter=brand%3Dacme")).text.count("Like this") == 2
    assert ask("/search/answer", *multipart(png((0, 0, 200)), "other")[:1], headers=multipart(b"")[1])[0] == 400
    huge = png_of_size(16_384, 16_384)
    for bad, wanted in ((b"", 400), (b"no", 400), (png((0, 0, 200))[:45], 400), (huge, 400), (bytes(10_001), 413)):
        status, answer, _ = ask("/search/answer", bad)
        assert status == wanted and answer["error"]
    for code in ("AAAA", "%C3%A9", "AQ"):  # zeros, no code, and a vector of another size
        status, answer, _ = ask(f"/search?picture={code}")
        assert status == 400 and "choose the picture again" in answer["error"]


def test_a_vector_in_an_address_is_nearly_the_vector():
    for vector in unit(np.random.default_rng(0).normal(size=(20, 640))):
        code = vector_code(vector)
        assert len(code) < 900 and re.fullmatch("[A-Za-z0-9_-]+", code)
        assert 0.999 < vector_of(code, 640) @ vector < 1.001


def test_larger_pictures_have_nothing_but_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    Image.new("RGB", (2000, 1000), (250, 0, 0)).save(tmp_path / "a.jpg", exif=exif)
    with asking(index_in_memory(ColorEmbedder(), collect.find(IMAGES, [str(tmp_path)]))) as ask:
        status, image, headers = ask("/search/picture/0")
        assert (status, headers.get_content_type()) == (200, "image/jpeg") and b"where I live" not in image
        assert Image.open(io.BytesIO(image)).size == (1600, 800)
        small = ask("/search/picture/0?side=240")[1]
        assert Image.open(io.BytesIO(small)).size == (240, 120)
        (tmp_path / "a.jpg").unlink()
        assert ask("/search/picture/0?side=240")[1] == small and ask("/search/picture/0")[0] == 404  # kept, and gone


def test_a_changed_index_is_served(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "images")
    made = Index.build(tmp_path / "index", ColorEmbedder(), [str(folder)])
    with asking(made, folder=tmp_path / "index") as ask:
        question = "/search/answer?sentence=rot&k=2"
        assert names(ask(question)) == ["red.png", "orange.PNG"]
        red, state = ask("/search/picture/2?side=240")[1], ask(question)[1]["index"]
        changes.remove(tmp_path / "index", ["red.png"])
        assert ask(question)[1]["index"] != state  # a part of the addresses of pictures, which browsers keep
        assert names(ask(question)) == ["orange.PNG", "violet.png"]
        assert ask("/search/picture/2?side=240")[1] != red
        (folder / "green.png").write_bytes(png((220, 90, 0)))
        Index.build(tmp_path / "index", ColorEmbedder(), [str(folder)])
        assert names(ask(question)) == ["green.png", "orange.PNG"]  # what was taken out stays out
        assert "green.png" in read(ask("/search")).text
        with monkeypatch.context() as patch:
            patch.setattr(Index, "check_model", lambda *_: (_ for _ in ()).throw(UserError("another model's")))
            changes.remove(tmp_path / "index", ["green.png"])
            assert names(ask(question)) == ["green.png", "orange.PNG"]  # of the former one
        (tmp_path / "index/index.sqlite").unlink()
        (tmp_path / "index/index.sqlite").write_bytes(b"damaged" * 1000)
        assert names(ask(question)) == ["green.png", "orange.PNG"]  # of the former one


def test_addresses_of_items_show_the_same_items_after_a_change(tmp_path):
    def items(price):
        for n in range(4):
            fields = {"price": price} if n == 1 else {}
            yield (
                Item(f"p{n}", captions=(("en", f"shoe number {n}"),), fields=fields, digest=f"{fields}"),
                png((n, 9, 9)),
            )

    made = sync(tmp_path / "index", ColorEmbedder(), items("1"))
    with asking(made, folder=tmp_path / "index") as ask:
        links = [link["href"] for link in read(ask("/search")).all("a") if "item=1-" in link["href"]]
        assert "shoe number 1" in read(ask(f"/{links[0]}")).text
        like = links[0].partition("item=")[2]
        sync(tmp_path / "index", ColorEmbedder(), items("2"))  # it is the last row now
        assert "shoe number 2" in read(ask("/search?item=1")).text
        assert "shoe number 1" in read(ask(f"/{links[0]}")).text
        assert "p1" not in names(ask(f"/search/answer?like={like}"))
        changes.remove(tmp_path / "index", ["p1"])
        assert ask(f"/{links[0]}")[0] == ask(f"/search/answer?like={like}")[0] == 404


def test_addresses_tell_nothing_of_an_item_s_number(tmp_path):
    """The page may hide it: whoever tries numbers needs the index's salt, which another update keeps."""
    items = [(Item("S-001", captions=(("en", "a red shoe"),), digest="1"), png((9, 9, 9)))]
    rows = set()
    for name in ("a", "b", "a"):
        made = sync(tmp_path / name, ColorEmbedder(), items)
        rows.add(lasting_row(made, 0))
    assert len(rows) == 2 and all(re.fullmatch("0-[0-9a-f]{16}", row) for row in rows)
    with contextlib.closing(sqlite3.connect(tmp_path / "b/index.sqlite")) as earlier, earlier:
        earlier.execute("DELETE FROM meta WHERE key = 'salt'")
    with asking(load_index(tmp_path / "b"), folder=tmp_path / "b") as ask:
        answered = read(ask("/search"))
        assert any(link["href"].endswith("item=0") for link in answered.all("a"))
        assert ask(f"/search?item={max(rows)}")[0] == 404


def test_an_index_in_a_store_is_read_once_and_says_so(index, tmp_path, capsys):
    words = "memory://shop/index is read from its store once: start the server again when it has changed."
    with announcing():
        ServedIndex(index, ColorEmbedder(), folder="memory://shop/index")
    assert words in capsys.readouterr().err
    with announcing():
        ServedIndex(index, ColorEmbedder(), folder=tmp_path)
    assert "is read" not in capsys.readouterr().err


def test_nothing_is_like_an_item_without_a_picture(shop_index):
    with asking(shop_index) as ask:
        status, answer, _ = ask("/search/answer?like=5")
        assert status == 400 and answer["error"].startswith("Row 5 has no picture")
        assert "like=5" not in read(ask("/search?item=5")).source and "like=6" in read(ask("/search?item=6")).source
        page = read(ask("/search")).source
        assert "item=5" in page and "like=5" not in page and "like=6" in page


def test_the_log_of_a_served_index_does_not_grow(tmp_path):
    def write(digest):
        for n in range(99):
            yield Item(f"p{n}", captions=(("en", f"thing {n} {digest}"),), digest=digest), png((n, 0, 9))

    changes.sync(tmp_path / "index", ColorEmbedder(), write("0"))
    served = ServedIndex(load_index(tmp_path / "index"), ColorEmbedder(), folder=tmp_path / "index")
    former, sizes = served.index, []
    for digest in "1234":
        changes.sync(tmp_path / "index", ColorEmbedder(), write(digest))
        served.refresh()
        assert served.index.describe(5).captions == (("en", f"thing 5 {digest}"),)
        sizes.append((tmp_path / "index/index.sqlite-wal").stat().st_size)
    assert 0 < max(sizes) < 2 * sizes[0]
    with pytest.raises(UserError):
        former.describe(5)


WRONG = [
    "sentence=red&k=many", "sentence=red&k=2000", "sentence=red&filter=brand", "sentence=red&filter=price%3Ccheap",
    "sentence=red&offset=-1", "offset=-5", "k=1_0", "k=%D9%A3", "k=1.5", "filter=a%3D" + "x" * 500, "closest=1",
    "sentence=red&offset=999", "k=1&k=2", "sentence=red&rank=best", "like=1&rank=words", "sentence=-red", "rank=words",
    "least_precision=0.5", "sentence=red&sort=colour", "language=%3Cb%3E", "sentence=red&like=1", "like=99", "like=-1",
    "like=x", "like=1&k=" + "9" * 5000, "sentence=++", "sentence=red&k=0", "&".join(["filter=a%3D"] * 33),
    "sentence=red+" + "+".join(f"-w{n}" for n in range(9)),
]  # fmt: skip
OTHERS = [
    "/search/answer?sentence=red&page=2", "/search?k=3", "/search?offset=-1", "/search?item=99", "/search?item=x",
    "/search/picture/0?side=300", "/search/picture/99", "/search/picture/..%2F..%2Fetc", "/search/picture/-1",
    "/search/facets",
]  # fmt: skip


def test_wrong_questions_get_an_error(ask):
    letters = "/search/answer?sentence=" + "%E0%A4%A8" * 2000
    assert ask(letters)[0] == 200  # as long as is taken, in nine bytes each
    assert ask("/search/answer?sentence=red" + "+-blue" * 300)[0] == 200  # one word, which is looked up once
    asked = [f"/search/answer?{query}" for query in WRONG]
    lines = []
    for path in [*asked, *OTHERS, letters + "x", letters + "x" * 5000]:
        status, answer, _ = ask(path)
        lines.append(f"{path[:80]}{'…' * (len(path) > 80)}\n    {status}: {answer['error']}")
    assert_snapshot("errors_of_questions", "\n".join(lines))
    assert_page("a_wrong_question", ask("/search?filter=brand", headers={"Accept": "text/html"}), 400)


def test_a_model_that_is_gone_is_said():
    for gone in ("", "/nowhere/gone"):
        assert_refused(app._existing_model, ["which is not there: give --export"], gone)


@pytest.mark.parametrize("export, small, loaded", [
    ("e", [], "e"), ("e", ["e"], "e/lite"), ("", [], "w/export"), ("", ["w/export"], "w/export/lite"),
    ("", ["no export"], "w"),
])  # fmt: skip
def test_what_is_loaded_to_be_served(index, monkeypatch, tmp_path, export, small, loaded):
    """The encoders of an export, small where it has these; of an index its own model's export, if that has one."""
    monkeypatch.chdir(tmp_path)
    for folder in ("e/text_encoder", "w/export/text_encoder"):
        (tmp_path / folder).mkdir(parents=True)
    if small == ["no export"]:
        (tmp_path / "w/export/text_encoder").rmdir()
    elif small:
        (tmp_path / small[0] / "lite").mkdir()
        (tmp_path / small[0] / "lite/lite.json").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if LiteRT were installed
    monkeypatch.setattr(index, "model", dataclasses.replace(index.model, path="w"))
    monkeypatch.setattr(app, "load_index", lambda folder: index)
    monkeypatch.setattr(app, "open_model", str)
    monkeypatch.setattr(app, "search_routes", lambda *given: given)
    assert app.load_page("i", export, PageSettings("Title")) == (index, loaded, PageSettings("Title"), "i")


def test_errors_name_no_place_of_the_machine(ask, monkeypatch):
    def damaged(*arguments, **options):
        raise UserError("/home/me/index is damaged")

    monkeypatch.setattr(answers, "search", damaged)
    for path in ("/search/answer?sentence=orange", "/search?sentence=orange"):
        assert ask(path)[:2] == (500, {"error": "The server failed on this request; its log says why."})


def test_an_index_of_another_model_is_not_served(index, monkeypatch):
    monkeypatch.setattr(ColorEmbedder, "_color", lambda self, image: np.arange(1.0, 4.0))
    assert_refused(search_routes, ["The index was made by the model"], index, ColorEmbedder())
