"""What small functions answer, whole: tests/snapshots/answers_of_search.txt has the answer of every call."""

import pathlib

from snapshots import assert_answers, given

from mural_search import fields, items, words, words_inside
from mural_search.items import Item
from mural_search.server import addresses, labels, marks, settings, shop
from mural_search.tables import own_tables, product_table, table_columns, table_pictures, table_rows
from mural_search.tables.table_rows import Row

PATH = pathlib.Path("t.csv")
FOLDER = str(pathlib.Path("/data/shop"))


def rows(*every):
    return [Row("", values) for values in every]


def roles(*every, there=()):
    """The roles of the columns of rows, where these pictures are there."""
    found = table_columns.find_columns(rows(*every), {}, lambda value: value in there)
    return found.images, dict(found.captions), found.language, found.identity, found.parent, found.sold


def chosen(named, names):
    """The column that a user means."""
    return table_columns._column(named, names, {"Photo": ["p.jpg"], "title_de": ["x"], "title": ["y"], "foto": ["z"]})


def shown(values, link=""):
    """A product's fields on the page."""
    return shop.ShopFields.of(values, "ID", link).product_of(Item("a", fields=values))


TABLE_ROWS = {
    table_rows.several: given("a", b"a", ("a", b"b"), ()),
    table_rows.texts_of: given("a", b"a", ("a", b"b"), ()),
    table_rows.without_suffix: given("a.jpg#0", "a.JPG?v=2", "a.txt#0", "a.jpg#0/b", "https://x.example/a.jpg?v=2",
    "a.jpg"),
    table_rows.is_encoded: given("/9j/" + 55 * "A", "/9j/" + 56 * "A", "data:image/" + 60 * "A", 80 * "A"),
    table_rows.names_picture: given(
        b"", "a.jpg", " a.PNG ", "a", "jpg", "a.txt", ("a.jpg", "b"), ("b", "a.jpg"), (),
        "https://x.example/a.jpg?v=1#b",
        "https://x.example/a?b=.jpg", "/9j/" + 56 * "A", "a.jpg#2"
    ),
    table_rows.find_names: given(
        [], [["a"]], [["a", "b"]], [["a", "b"], ["1", "2"]], [["p.jpg", "x"], ["q.jpg", "y"]],
        [["Export", ""], ["image", "title"], ["p.jpg", "hat 1"]], [["image", "title"], ["", "hat 0"],
        ["p.jpg", "hat 2"]],
        [["Export"], ["p.jpg", "x"]], [["a", "a"], ["b", "c"], ["p.jpg", "d"]], [["id", "image", "note"],
        ["x", "y", ""],
        ["1", "p.jpg", ""]], [["title", "image"], ["A-1", "B"], ["A-2", "p.jpg"]], [["", " "], ["\ufeffa", " "],
        ["b", "c"]],
        [["only", ""], ["a", "b"], ["c", "d"], ["e", "f", "g", "h"]], [["only", ""], ["a", "b", "c"],
        ["e", "f", "g", "h", "i"]],
    ),
    table_rows.columns_of_lists: given(
        rows({"a": "[1]", "b": "[1]"}, {"a": "['x']", "b": "x"}), rows({"a": "{}", "b": b"[]"}, {"a": "x"},
        {"a": "[2]"})
    ),
    table_rows.with_lists: [
        (rows({"a": "['x', 'y']", "b": "['x']", "c": ("[1]",), "d": '{"e": "1"}'})[0], {"a", "c", "d"}),
        (rows({"a": "red"})[0], {"a"}),
    ],
    table_rows._parsed: given(
        "a", "[1", "[]", " [1, 2] ", "{}", "{1, 2}", "['a', nan, 'b']", "['a' 'b\\'c']", "['a'\n \"b\"]", "[a]", "[1}",
        "(1)",
        "{'a': 1}", "[x for x in y]", "['a', None]"
    ),
    table_rows.flattened: given(
        {"a": [("x", "1"), ("y", "2")]}, {"a": [("x", "1"), "y"]}, {"a": [("x", "1", "2")]}, {"a": []}, {"a": {}},
        {"image": {"bytes": b"x", "path": "p"}}, {"image": {"bytes": None, "path": "p"}}, {"bytes": b"x", "path": "p"},
        {"a": [{"b": "1"}, {"b": "2", "c": ["3", "4"]}, {"b": ["5"]}]}, {"a": [{"b": "1"}, "x"]}, {"a": "x", "b": None,
        "c": " "},
        {"a": {"b": {"c": {"d": {"e": "far"}}}}}, {"a": ["x", 1, None]}, {"a": 0},
    ),
    table_rows.value_of: given(
        "a", b"a", ["a", 1, None, "", [2], " "], (), None, float("nan"), 2.0, 2.5, 3, True, {"a": None, "é": 1},
        {"a": {1}},
        float("inf"), -1e300, {(1, 2): 3}
    ),
}  # fmt: skip
TABLE_PICTURES = {
    table_pictures.pictures_of: given(
        "a.jpg|b.jpg", "a.jpg, b.jpg", "a.jpg;b", "red, blue.jpg", "a.jpg#1", "", ("a.jpg", b"x", ""), " a.jpg ",
        "|a.jpg|",
        "data:image/png;base64," + 40 * "QUFB", "data:image/svg+xml," + 20 * "%3Csvg", "/9j_" + 80 * "-",
        "/9j/" + 57 * "!",
    ),
    table_pictures._plain_stem: given("a/B.JPG", "a/leo\u0301n.jpg", "a.txt", "a", ".jpg", "a.b.png"),
    table_pictures._of_size: given("hat-scaled", "hat-300x200", "hat-300x", "1000.0", "1000.00", "hat-scaled-1",
    "a-1x1-2x2"),
    lambda value: list(table_pictures._names(value, FOLDER)): given(
        "a.jpg", "a\\b.jpg", "/data/x.jpg", "/data/shop/b/x.jpg", "https://x.example/s/a%20b.jpg?v=1",
        "http://[x/a.jpg", "s3://b/c/"
    ),
}  # fmt: skip
PRODUCTS = [{"sku": f"A{n}", "image": f"p{n}.jpg", "title": f"hat {n}"} for n in range(4)]
TABLE_COLUMNS = {
    table_columns.plain: given("Image Src", "product_url", "image.bytes", "GTIN, UPC", "ÄÖ-ß"),
    table_columns.split_language: given(
        "title_de", "caption.pt-BR", "Titel (EN)", "de", "pt-BR", "pt_br", "title_alt", "image_id", "caption_deu",
        "is_new",
        "name", "xx-YY", "title[fr]", "title: de ", "_de", "a" * 300 + "_de", "zh_Hant", "title_zh_Hant"
    ),
    table_columns.parse_choices: given(
        [], ["image=a+b"], ["caption.deu=x", "caption=y"], ["id=GTIN", "UPC"], [" image=a", "image=b"], ["UPC"],
        ["id=a", "b=c"],
        ["caption.klingon=x"], ["image="]
    ),
    chosen: [("image", "photo"), ("image", "fotos"), ("caption", "title"), ("id", "title"), ("id", "nothing"), ("id",
    "Photo")],
    table_columns._are_language_codes: given(
        set(), {"en"}, {"en", "de"}, {"si", "no"}, {"kg", "ml"}, {"it", "de"}, {"en", "xx"}, {"en", "pt_BR"}, {"EN",
        "DE"},
        {"en", "d"}, {f"{a}{b}" for a in "abcdefghijkl" for b in "abcdefghijkl"}
    ),
    table_columns._holds_words: given([], ["1"], ["1", "hat"], ["a1", "b2", "hat"], ["帽"], ["é"], ["a"],
    [("1", "hat")], [b"x"]),
    table_columns._wordiness: given(
        [], ["1"], ["hat", "hat"], ["hat", "cap"], ["hat", "1"], ["hat", "1", "2"], ["a b c"], ["p.jpg"], ["x" * 30,
        "y" * 9],
        ["a - b -- c"], [("hat", "cap")], ["नमस्ते"]
    ),
    table_columns._find_identity: [
        ({"a": ["x1", "x2"]}, 2), ({"a": ["x1", "x1"]}, 2), ({"a": ["1.5", "2.5"]}, 2), ({"a": ["p1.jpg", "p2.jpg"]},
        2),
        ({"a": ["x1"]}, 2), ({"a": ["red", "blue"]}, 2), ({"a": ["2026-05-31", "2026-06-01"]}, 2), ({"a": ["1", "2"]},
        2),
        ({"a": [f"x{min(n, 37)}" for n in range(40)]}, 40), ({"a": [f"x{min(n, 38)}" for n in range(40)]}, 40),
        ({"a": ["x" * 39 + "1", "22"]}, 2), ({"a": ["x" * 40 + "1", "22"]}, 2), ({"a": ["-", "-"], "b": ["10", "11"]},
        2),
    ],
    table_columns._script: given("", "12", "hat", "Hüte", "帽子 hat", "кот-cat", "ｶﾞ"),
    table_columns._shares: [
        ([],), ([{"de": 0.7, "en": 0.3}, {"de": 0.2, "en": 0.8}],), ([{"de": 1.0}] * 30 + [{"en": 1.0}],),
        ([{"de": 0.0}],),
        ([{"de": 1.0}] * 30 + [{"en": 1.0}], 0.0),
    ],
    roles: [
        tuple(PRODUCTS), ({"image": "p.jpg"},), ({"name_id": "hat", "image": "p.jpg", "text": "a"},),
        ({"thumb": "a.jpg", "photo": "b.jpg", "image_2": "c.jpg", "image_alt": "d.jpg"},),
        ({"image": "p.jpg", "title_de": "Hut", "title_en": "hat", "code": "A1", "parent": "A", "published": "1"},) * 2,
        ({"image": "p.jpg", "x_de": "Hut", "x_en": "hat", "lang": "de"},),
        ({"image": "p.jpg", "said": "hat", "l": "en"},
        {"image": "q.jpg", "said": "Hut", "l": "de"}), ({"id": "p1", "words": "red hat"},),
        ({"p": "a.jpg", "image": "x"},),
        ({"item_group_id": "1", "parent": "2", "image": "p.jpg", "status": "x"},), ({"image": b"x", "caption": b"y"},),
        ({"image": "p.jpg", "language": "de", "language_2": "en", "caption": "x"},),
    ],
}  # fmt: skip
OWN_TABLES = {
    own_tables._file_type_of: given(*map(pathlib.Path, (
        "a.csv", "a.TSV", "a.csv.gz", "a.json.xz", "a.xlsx", "a.parquet", "a.gz", "a.ods", "a.txt.zip"))),
    own_tables._find_encoding: [(data, PATH) for data in (
        b"", b"a", b"\xef\xbb\xbfa", "a".encode("utf-32"), "a".encode("utf-16"), "abc;de".encode("utf-16-le"),
        "ab".encode("utf-16-be"),
        "Müsli\nX\nä".encode(), "Müsli".encode("cp1252"), "Müsli\n".encode() + b"\xe4",
        "Müsli\n".encode() + 2 * b"\xe4\n",
        "赤い帽子".encode("shift_jis"), "шапка".encode("cp1251"), "모자를".encode("euc_kr"), b"a\0b\0c", b"\0a\0bc")],
    own_tables._find_form: [(text.encode(), PATH, own_tables.Form()) for text in (
        "a,b\n1,2\n", "a;b\n1,5;2\n", "a\tb\n", "a|b\n1|2", "sep=;\na,b\n", "sep=:\na,b\n", "a, b\n1, \"x, y\"\n",
        'a,b\n1,"x\\"y"\n',
        "Export\na,b\n1,2\n", "a\nb\n", " \n", 'a\tb\n"x\ty\n"z\tw\n', "a,b;c\n1,2;3\n4,5;6\n",
        "a,b,c\n1;2\n3;4\n5;6\n")],
    own_tables._is_empty: given([], ["", " "], ["sep=;"], ["sep=", "x"], ["sep=", ""], ["a"], ["sep=;;"]),
    own_tables._problem_with_cells: [(cells, ["a", "b"], own_tables.Form(delimiter=",")) for cells in (
        ["1", "2"], ["1"], ["1", "2", " "], ["1", "2", "3"], ["1\n2"], ["1\n2", "3"], ["x\np.jpg,hat", "2"],
        ["x\ry.jpg,z", "2"])],
    own_tables._begins_with_object: given("", "[\n{}", "{}, ", "[", "5", '\n{"a": 1},\n{oh', "[{}]"),
    own_tables._objects_within: [(document, PATH) for document in (
        {}, {"a": 1}, {"columns": ["a"], "data": [[1], [2]]}, {"columns": ["a"], "data": [[1]], "index": ["x"]},
        {"p.jpg": "hat"}, {"p.jpg": {"caption": "hat"}, "q.jpg": ["a", "b"]}, {"a": [1, 2], "b": [3, 4]}, {"a": [1, 2],
        "b": [3]},
        {"a": [{"x": 1}], "b": [{"x": 2}]}, {"n": 2, "rows": [{"x": 1}], "more": [{"y": 2}]}, {"n": [1],
        "rows": [{"x": 1}, 5]},
        {"image": {"0": "p.jpg", "1": "q.jpg"}, "title": {"0": "a", "1": "b"}}, {"0": {"image": "p.jpg"},
        "1": {"image": "q.jpg"}},
        {"x": {"image": "p.jpg"}, "y": {"image": "q.jpg"}}, {"image": {"x": "p.jpg", "y": "q.jpg"},
        "t": {"x": "a", "y": "b"}},
        {"a": {"x": 1}, "b": {"y": 2}}, {"a": {"x": 1}}, {"columns": 5, "data": [[1]]}, {"a": []})],
    own_tables._problem_with: given(*rows({"a": "x"}, {"a": "x\0"}, {"a\0": "x"}, {"a": "\udcff"},
    {"a": (b"\0", "\ufffd")}, {"a": "\ufffd"})),
    own_tables._words_of_name: given(
        "red_hat-2", "IMG_0001", "IMG0001", "PXL_20260501_1", "UN LEÓN", "犬", "x1", "a b", "DSCN0002-1", "abc",
        "IMG_001", "ab cd3"
    ),
    own_tables.language_of_caption: given("caption", "caption.de", "caption.", "captions", "title.de"),
    own_tables.language_of: given("de", "deu", "pt_BR", "pt-br", "the", "new", "xx", "", "ace", "sr-Latn"),
    own_tables._named_caption: given(
        "de=Hut", "de = Hut ", "deu=Hut", "ace.utf8=Hut", "ace=Hut", "sr@latin.utf8=kengur", "sr_RS@Cyrillic=x",
        "de@euro=Hut", "de=",
        "a = b", "xx.utf-8=x", "no line", "pt_BR.UTF8=\n"
    ),
}  # fmt: skip
NUMBERS = (
    "5;19,90 EUR;$7;1,200.50;1.200,50;cheap;-3;−3,5;+4;US$ 3;kr. 1.299;Rp129.000;1’299.50;1 299,00;1.299;1,299;5.;12,-;"
    "1.299.000;10 - 20 EUR;9.90–19.90;2026-05-31;2026-5;31.5.2026;2026-05-31T10:00;2026-13-01;1.2.3;A-1;٣;١٢٫٥;1e5;0;;"
    f"12 pcs;7 centimetres;{401 * '9'}"
)
COLUMNS_OF_NUMBERS = [
    ["349.000 ₫", "12.000.000 ₫", "75.000 ₫"], ["Rp 129.000", "Rp12.450.000", "Rp. 500"], ["1.299 €", "349 €",
    "1.299,50 €"],
    ["1.299", "2.5"], ["0.125", "1.250"], ["1,234", "12,5"], ["1,234", "12,345.5"], ["CHF 1’299.50", "−3", "-$5",
    "US$1,299.00"],
    ["₹1,29,999", "₫1.250.000", "1 299,00", "12,-"], ["١٢٩٩", "١٬٢٩٩", "١٢٫٥"], ["129.000 – 299.000 ₫", "10 - 20 EUR"],
    ["129.000, 139.000", "75.000"], ["1.2.3", "A-1", "2026-05"],
]  # fmt: skip


def amounts(values):
    """The numbers of a column's values."""
    marks = items.group_marks(values)
    return [items.amount(value, marks) for value in values]


ITEMS = {
    amounts: given(*COLUMNS_OF_NUMBERS),
    items.amount: [*given(*NUMBERS.split(";")), ("1.299", "."), ("1,299", ""), ("1.299", ",."), ("0.125", "."),
    ("12.345.678", "")],
    items.group_marks: given(
        ["1.299", "2.5"], ["1.299", "5.000"], ["1.299.000", "75.000"], ["1,234", "12,5"], ["1,234", "12,345.5"],
        ["1,234.5"], ["1.234,5"],
        ["0.125", "1.250"], [], ["x", "5"], ["349.000 ₫", "12.000.000 ₫"], ["1,29,999"], ["1.5,000"]
    ),
    items.parse_filters: given(
        [], ["a=b", "a=b"], [" a <= 5 "], ["a>=2026-05"], ["a<b"], ["=b"], ["a"], ["a=b=c"], ["a=\nb"], ["x" * 501],
        ["x=" + "y" * 498], ["a<>5"]
    ),
    Item.caption: [(Item("a", captions=captions), *language) for captions in ((), (("de", "x"),), (("de", "x"),
    ("en", "y")))
        for language in ((), ("de",), ("fr",))],
}  # fmt: skip
WORDS = {
    words.spread: given(
        "Red  HÜTE", "straße", "赤い風船x", "e\u0301a|b", "naïve-cat.", "café\u200d\u00ad\0", "ساعَة", "ٱلكتاب", "ıİ",
        "한국어", "①ﬁ", "שָׁלוֹם", "🎈 a",
        "नमस्ते", "\U00020000\U0003ffff\U00040000", "\u2e80\u9fff\ua000", "\ud7af\ud7b0", "\uf900\ufaff\ufb00"
    ),
    words.document: given([], ["a"], ["A b", "", "赤い"]),
    words.grams: given("", "a", "ab ab", "赤い", ".", "".join(map(chr, range(0x4E00, 0x4E50)))),
    words.quoted: given('a"b\0c', ""),
    words.split: given("a shoe -red", "a-b -c - d --e", "-red", "5 -3", "a  b", "a -réd. -", "-", "a -x -y b", "a -|x"),
}  # fmt: skip
SERVER = {
    addresses.to_number: [("k", text) for text in ("5", "-5", "1_0", "٣", "", "5 ", "9" * 18, "9" * 19, "+1")],
    addresses.address: given([], [("a", "b c"), ("d", 5)], [("a", "\ud800")]),
    addresses.ranges_as_filters: given(
        {}, {"a": "b"}, {"from.price": "3", "to.price": " 7 ", "to.year": "", "offset": "20", "sentence": "x"},
        {"from.price": " "}
    ),
    lambda query, *names: addresses.Links(query).to(*names): [
        ({},), ({"a": "1", "b": "", "offset": "3", "item": "2", "closest": "1"},), ({"a": "1", "c": "2"}, "a"),
        ({"a": "1"}, "a")
    ],
    labels.preferred: [(header, labels.LANGUAGES) for header in (
        "", "de", "de-AT,de;q=0.9", "nl,fr;q=0.3,es;q=0.8", "en;q=0,pl", "*", "ZH-tw", "sw, ar-EG;q=0.5, en;q=0.4",
        "de;q=x,it",
        ";q=1,,", "tr;q=0.5,ja;q=0.5", "x" * 1000 + ",de", "fr;q=1.0,de")],
    lambda language, value: labels.Labels(language).number(value): [
        ("de", 1234567), ("fr", 1234), ("en", 999), ("en", 1000),
    ],
    lambda *arguments: str(marks.mark(*arguments)): [
        ("Rote Geige & <b>Bogen</b>", "geige <b>"), ("Théière en étain", "theiere"), ("जूते काले", "जूते"), ("a", ""),
        ("Regenschirme", "Regenschirm -rot"), ("a red mug", "a mug"),
        ("くまのぬいぐるみ", "ぬいぐるみの店"), ("ساعَة منبه", "ساعة"),
        ("大剪刀", "剪刀"), ("a mug", "a"), ("redder red re", "re"), ("red-red mug", "red"),
        ("剪", "剪"), ("剪刀剪", "剪 刀"),
        ("mugs mu", "mu mugs"),
    ],
    marks.words_of: given("a Bé", "赤い", "e\u0301x", "\u0301", "a赤b"),
    shop.plain: given("Product URL", "product_url", "Größe (cm)"),
    shown: [
        ({},), ({"Price": "19,90", "Currency": "EUR"},), ({"Price": "19.90, 9.90", "Currency": "EUR, EUR"},),
        ({"Price": "9,90 €, 19,90 €", "Currency": "EUR"},), ({"Preis": "349.000 ₫"},),
        ({"Size": "38, 36, 37", "Colour": "red, blue"},),
        ({"Stock": "37, 2, 6, 0"},), ({"Lagerbestand": "0, 0"},), ({"In stock?": "0", "Stock": "0"},),
        ({"在庫": "売り切れ"},),
        ({"availability": "out_of_stock"},), ({"availability": "in stock, sold out"},),
        ({"Stock": "0", "In stock?": "1"},),
        ({"Low stock amount": "0"},), ({"ID": "5", "variations": "6, 7", "SKU": "W, V"},),
        ({"ID": "5", "variations": "6"},),
        ({"Product URL": "https://x.example/1, https://x.example/2"},), ({"link": "javascript:alert(1)"},),
        ({"a": "http://x.example"}, "a"),
        ({"image link": "https://x.example/1"},), ({"Stock": "-1"},), ({"Size": "38, 36", "Currency": "EUR"},),
    ],
    settings.contrast: [((255, 255, 255), (0, 0, 0)), ((9, 10, 11), (200, 100, 0)), ((0, 0, 0), (0, 0, 0))],
    settings.readable: [(color, ground) for color in ((255, 255, 0), (0, 0, 255), (128, 128,
    128)) for ground in (settings.WHITE, settings.DARK)],
    lambda color: settings.PageSettings(color=color).colors(): given("", "#ffff00", "#b3261e", "#000000", "#0000ff",
    "red"),
    product_table.plain_text: given(
        "<p>A <b>f</b>ine hat &amp; more</p><p>yes", "a < b > c &c", "I <3 hats; <5 EUR>",
        "x<br/>y<style>p {}</style><!-- no -->z",
        "<a href='http://x.example'>hat</a>", "R&D", "<hat>", r"<p>a</p>\nb [1]", r"C:\new [note]", "&nbsp;a", "a&lt;b"
    ),
}  # fmt: skip
SIDECARS = [  # a picture, and a file next to it
    ("a.jpg", "a.jpg.xmp"), ("a.jpg", "a.xmp"), ("A.JPG", "A.XMP"), ("a.jpg", "ab.xmp"), ("a.jpg", "a_01.jpg.xmp"),
    ("a.jpg", "a.jpg.suppl.json"), ("a(1).jpg", "a.jpg(1).json"), ("a.jpg", "a.jpg.supplemental-metadata(1).json"),
    (f"{'x' * 43}.jpg", f"{'x' * 43}.jp.json"), (f"{'x' * 47}.jpg", f"{'x' * 46}.json"), ("abc.jpg", "ab.json"),
    ("a.jpg", "a.json"), ("x/a.jpg", "a.jpg.xmp"),
]  # fmt: skip
INSIDE = {
    words_inside._date: given(
        "2019:07:05 12:33:01", "2019-07-05T12:33:01+02:00", "20190705", "1905", "1905-06", "19050000",
        "0000:00:00 00:00:00",
        "2019:13:41", "    :  :     ", "yesterday", "201907", "20190705123301", "3019", "2019-00-05", "2019-02-30"
    ),
    words_inside._degrees: given("47,22.6N", "47,22,36.8S", "-8.54", "8.5W", "", "x", "nan", "180", "180.1", "-181",
    "1,30E"),
    words_inside._comment: [(data, big) for big in (False, True) for data in (
        b"", b"ASCII\0\0\0hat", b"\0\0\0\0\0\0\0\0hat", b"hat without", b"UNICODE\0h\0a\0", b"UNICODE\0\0h\0a",
        b"UNICODE\0\x01\x02\x03\x04", b"JIS\0\0\0\0\0x")],
    words_inside._decoded: given("hat", "HÃ¼te", b"H\xfcte", b"H\xc3\xbcte", b"\x81"),
    words_inside.fields_of: given(
        {}, {"taken": [("", "x"), ("", "2019:07")], "created": [("", "2018")]}, {"city": [("", ""), ("", "Rome")],
        "country": [("", "Italy")],
        "state": [("", "Rome")]}, {"make": [("", "NIKON CORPORATION")], "model": [("", "NIKON D70")]},
        {"make": [("", "SONY")],
        "model": [("", "A7")]}, {"make": [("", "SONY")]}, {"latitude": [("", "47,30N")], "longitude": [("", "8W")]},
        {"latitude": [("", "0")], "longitude": [("", "8")]}, {"people": [("", "Anna"), ("", "Bo"), ("", "Anna")]}
    ),
    lambda texts: words_inside.captions_of(texts, pathlib.Path("IMG_1.jpg")): given(
        *({"title": [("", text)]} for text in ("hat", "IMG_1", "IMG_1.jpg", "12", "SONY DSC", "Canon", "Untitled",
        "digital camera", "a\0b", "\ufffd",
            "Created with GIMP", "My digital camera", "KONICA MINOLTA DIGITAL CAMERA", "SAMSUNG", "Default",
            "Exif_JPEG_PICTURE",
            "My beautiful picture", "   ", "---", '{"mirror":false}', "edf", "charset=Ascii", "Sony", "Sunset",
            "DSC_0002 at sea", "Screenshot", "Screenshot of a map", "hdr", "ai:x=1", "[a]", "OLYMPUS DIGITAL CAMERA")),
        {"title": [("", "A7")], "model": [("", "A7")]}, {"title": [("", "Show 3")], "software": [("", "Show 3")]},
        {"keywords": [("", "2019"), ("", "beach"), ("", "beach")]},
        {"title": [("x-default", "hat"), ("en", "hat"), ("de", "Hut")]},
        {"description": [("", 64 * "ab"), ("en", 64 * "ab" + "c")]},
        {"title": [("", "a red")], "description": [("", "a red hat")]},
    ),
    words_inside.sidecars_of: [
        *((pathlib.Path("/P", name), {f"/p/{other.lower()}": other}) for name, other in SIDECARS),
        *((pathlib.Path(name), {other: other for other in (
            "a.xmp", "a.jpg.xmp", "a.jpg.json", "a.jpg.supplemental-metadata.json", "b.jpg.supplemental-me.json",
            "c.jpg.supplemental-metadata(1).json",
            "d.json", "d.jpg.json", "e.xmp")})
        for name in ("a.jpg", "A.JPG", "b.jpg", "c(1).jpg", "c.jpg", "d-edited.jpg", "d-edited(1).jpg", "e.png",
        "f.jpg")),
    ],
}  # fmt: skip
FIELDS = {
    fields._letters: given("A-b Ç!", ""),
    fields._repeats: [("hat", "hat"), ("redhat", "hat"), ("red", "redhat"), ("redh", "redhat"), ("x", ""), ("", "hat"),
    ("acme", "acmehat1")],
}  # fmt: skip


def test_answers():
    every = (TABLE_ROWS, TABLE_PICTURES, TABLE_COLUMNS, OWN_TABLES, ITEMS, WORDS, SERVER, INSIDE, FIELDS)
    assert_answers("answers_of_search", {function: calls for part in every for function, calls in part.items()})
