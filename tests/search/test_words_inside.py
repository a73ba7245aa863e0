"""Words inside pictures, in the forms that exiftool, Lightroom, digiKam, darktable, Windows and Google write them."""

import io
import json
import pathlib

import pytest
from PIL import Image, ImageFile, PngImagePlugin
from table_data import found, texts_of

from mural_lite.text_files import is_text
from mural_search import words_inside
from mural_search.items import amount
from mural_search.tables.product_table import TableRequest, inspect_table
from mural_search.words_inside import WordsInside, captions_of, fields_of, read_texts

SPACES = {
    "dc": "http://purl.org/dc/elements/1.1/", "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "digiKam": "http://www.digikam.org/ns/1.0/", "lr": "http://ns.adobe.com/lightroom/1.0/",
    "MicrosoftPhoto": "http://ns.microsoft.com/photo/1.0", "exif": "http://ns.adobe.com/exif/1.0/",
    "tiff": "http://ns.adobe.com/tiff/1.0/", "xmp": "http://ns.adobe.com/xap/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}  # fmt: skip
XMLNS = " ".join(f'xmlns:{name}="{space}"' for name, space in SPACES.items())


def packet(properties="", attributes="", before=""):
    """A packet of XMP, as between the pictures' other data: with padding behind it."""
    return (
        f"<?xpacket begin='\ufeff' id='W5M0MpCehiHzreSzNTczkc9d'?>{before}<x:xmpmeta xmlns:x='adobe:ns:meta/'>"
        "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'>"
        f"<rdf:Description rdf:about='' {XMLNS} {attributes}>{properties}</rdf:Description>"
        f"</rdf:RDF></x:xmpmeta>\n{' ' * 100}\n<?xpacket end='w'?>"
    ).encode()


def several(name, *items, kind="Bag"):
    """A property with items, each a text or (language, text)."""
    pairs = [("", item) if isinstance(item, str) else (f' xml:lang="{item[0]}"', item[1]) for item in items]
    return (
        f"<{name}><rdf:{kind}>{''.join(f'<rdf:li{tag}>{text}</rdf:li>' for tag, text in pairs)}</rdf:{kind}></{name}>"
    )


def exif(description="", comment=b"", photograph=(), windows=(), position=(), **more):
    data = Image.Exif()
    if description:
        data[0x010E] = description.encode()  # UTF-8, as exiftool writes it
    for tag, value in {"make": 0x010F, "model": 0x0110, "software": 0x0131}.items():
        if tag in more:
            data[value] = more[tag]
    for tag, text in dict(windows).items():
        data[tag] = text.encode("utf-16-le") + b"\0\0"
    data.get_ifd(0x8769).update({**dict(photograph), **({0x9286: comment} if comment else {})})
    data.get_ifd(0x8825).update(dict(position))
    return data


def iptc(*records, marker=None):
    """The bytes of records (number, bytes) of IPTC in a JPEG's segment of Photoshop."""
    data = b"" if marker is None else b"\x1c\x01\x5a" + len(marker).to_bytes(2, "big") + marker
    for number, value in records:
        data += bytes([0x1C, 2, number]) + len(value).to_bytes(2, "big") + value
    resource = b"8BIM\x04\x04\0\0" + len(data).to_bytes(4, "big") + data + b"\0" * (len(data) % 2)
    segment = b"Photoshop 3.0\0" + resource
    return b"\xff\xed" + (len(segment) + 2).to_bytes(2, "big") + segment


def picture(path, xmp=b"", exif=None, iptc=b""):
    """Writes a picture with metadata, in the format of its ending."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if xmp and path.suffix == ".tif":
        exif = exif or Image.Exif()
        exif[700] = xmp
    more = {"exif": exif} if exif is not None else {}
    if xmp and path.suffix == ".png":
        more["pnginfo"] = PngImagePlugin.PngInfo()
        more["pnginfo"].add_itxt("XML:com.adobe.xmp", xmp.decode())
    elif xmp:
        more["xmp"] = xmp
    buffer = io.BytesIO()
    formats = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".tif": "TIFF"}
    Image.new("RGB", (24, 16), (len(path.name), 80, 90)).save(buffer, formats[path.suffix], **more)
    content = buffer.getvalue()
    path.write_bytes(content[:2] + iptc + content[2:] if iptc else content)
    return path


def words(path, *sidecars):
    """The captions and fields of a picture that must have no problems."""
    texts, problems = read_texts(path, sidecars)
    assert not problems
    return [tuple(caption) for caption in captions_of(texts, path)], fields_of(texts)


def texts_in(path, *sidecars):
    return [text for _, _, text in words(path, *sidecars)[0]]


XMP = packet(
    several("dc:title", ("x-default", "Ein See"), ("de-DE", "Ein See"), ("en", "A lake"), kind="Alt")
    + several("dc:description", ("x-default", "Boote &amp; Ufer"), kind="Alt")
    + several("dc:subject", "Wasser", "Zürich")
    + "<photoshop:City>Zürich</photoshop:City>",
    'photoshop:Country="Schweiz" photoshop:DateCreated="2019-07-06"',
)
EXIF = dict(
    description="Größe", make="NIKON CORPORATION", model="NIKON D70\0", photograph={0x9003: "2019:07:05 12:33:01"},
    position={1: "N", 2: (47.0, 22.0, 36.84), 3: "W", 4: (8.0, 32.0, 30.12)},
    windows={0x9C9B: "Título", 0x9C9E: "uno;dos"},
)  # fmt: skip


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_every_format_has_the_same_words_and_no_pixel_is_decoded(tmp_path, ending, monkeypatch):
    path = picture(tmp_path / f"a.{ending}", XMP + b"\0\0" * (ending != "png"), exif(**EXIF))
    without = picture(tmp_path / f"b.{ending}")
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("pixels are decoded"))
    captions, fields = words(path)
    assert captions == [
        ("title", "de-DE", "Ein See"), ("title", "en", "A lake"), ("title", "", "Título"),
        ("description", "", "Boote & Ufer"), ("description", "", "Größe"),
        ("keywords", "", "Wasser"), ("keywords", "", "Zürich"), ("keywords", "", "uno"), ("keywords", "", "dos"),
    ]  # fmt: skip
    if ending == "tif":  # Pillow writes no tables below the first one there
        fields |= {"date": "2019-07-05", "latitude": "47.37690", "longitude": "-8.54170"}
    assert fields == {
        "date": "2019-07-05", "place": "Zürich, Schweiz", "camera": "NIKON D70",
        "latitude": "47.37690", "longitude": "-8.54170",
    }  # fmt: skip
    assert words(without) == ([], {})
    assert 2019 < amount(fields["date"]) < 2020 and amount(fields["longitude"]) == -8.5417


def test_keywords_below_others_and_notes_of_programs(tmp_path):
    """digiKam writes three lists for three programs; darktable notes in the same list what it did."""
    digikam = several("digiKam:TagsList", "Places/Paris", "Ann", kind="Seq")
    digikam += several("MicrosoftPhoto:LastKeywordXMP", "Places/Paris", "Ann") + several("dc:subject", "Paris", "a/b")
    assert texts_in(picture(tmp_path / "a.jpg", packet(digikam))) == ["Paris", "a/b", "Places", "Ann"]
    darktable = several("lr:hierarchicalSubject", "darktable|format|jpg", "Places|Paris")
    darktable += several("dc:subject", "darktable", "format", "jpg", "sea")
    assert texts_in(picture(tmp_path / "b.jpg", packet(darktable))) == ["sea", "Paris", "Places"]


@pytest.mark.parametrize("marker, encoding", [(b"\x1b%G", "utf-8"), (None, "utf-8"), (None, "latin-1")])
def test_iptc_in_its_encodings(tmp_path, marker, encoding):
    records = [(5, "Café"), (105, "Sommer"), (120, "Ein Café am See"), (25, "Zürich"), (25, "See"), (90, "Zürich")]
    path = picture(tmp_path / "a.jpg", iptc=iptc(*((n, text.encode(encoding)) for n, text in records), marker=marker))
    captions, fields = words(path)
    assert [text for _, _, text in captions] == ["Café", "Sommer", "Ein Café am See", "Zürich", "See"]
    assert fields == {"place": "Zürich"}


def test_a_text_that_iptc_cuts_is_no_further_one(tmp_path):
    """At 64 bytes, here within é; XMP has the whole title."""
    title = f"{'A long day ' * 5}at the café by the sea"
    cut = title.encode()[:66]
    assert cut[-1:] == b"\xc3"
    path = picture(tmp_path / "a.jpg", packet(several("dc:title", title)), iptc=iptc((5, cut), marker=b"\x1b%G"))
    assert texts_in(path) == [title]


TAKEOUT = {
    "title": "a.jpg", "description": "Am See", "photoTakenTime": {"timestamp": "1562322780"},
    "geoData": {"latitude": 47.3769, "longitude": 8.5417}, "people": [{"name": "Ann"}, {"name": "Bo"}],
}  # fmt: skip


def test_sidecars(tmp_path):
    """An XMP sidecar is an edited version: what it says comes in place of the picture's; the JSON adds to both."""
    path = picture(tmp_path / "a.jpg", XMP)
    xmp = tmp_path / "a.jpg.xmp"
    xmp.write_bytes(packet(several("dc:title", "New title"), 'exif:GPSLatitude="47,30.0S" exif:GPSLongitude="8,30E"'))
    takeout = tmp_path / "a.jpg.json"
    takeout.write_text(json.dumps(TAKEOUT))
    captions, fields = words(path, xmp, takeout)
    assert [text for _, _, text in captions] == ["New title", "Boote & Ufer", "Am See", "Wasser", "Zürich"]
    position = {"latitude": "-47.50000", "longitude": "8.50000"}
    assert fields == {"date": "2019-07-06", "place": "Zürich, Schweiz", "people": "Ann, Bo", **position}
    bare = picture(tmp_path / "b.jpg")
    assert words(bare, takeout)[1]["date"] == "2019-07-05"
    takeout.write_text(json.dumps({"geoData": {"latitude": 0.0, "longitude": 0.0}, "photoTakenTime": {}}))
    assert words(bare, takeout) == ([], {})


BOMB = '<!DOCTYPE a [<!ENTITY b "boom"><!ENTITY c "&b;&b;">]>'
OUTSIDE = "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>"
DAMAGED = {
    "XMP": dict(xmp=XMP[:300]), "entities": dict(xmp=packet("<dc:title>&c;</dc:title>", before=BOMB)),
    "a schema": dict(xmp=packet(before="<!DOCTYPE a SYSTEM 'http://x.example/a.dtd'>")),
    "a file": dict(xmp=packet("<dc:title>&b;</dc:title>", before=OUTSIDE)),
    "IPTC": dict(iptc=iptc((5, b"title")).replace(b"\x1c\x02\x05", b"\x1d\x02\x05")),
    "EXIF": dict(exif=exif("A lake").tobytes()[:-8]),
}  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_metadata_are_counted_and_the_picture_stays(tmp_path, content):
    picture(tmp_path / "a.jpg", **content)
    picture(tmp_path / "b.jpg", exif=exif("A boat"))
    table = inspect_table(TableRequest(str(tmp_path), language="en"))
    assert "1 x" in table.describe() and "damaged or too large; the picture is used" in table.describe()
    tally = found(table, tmp_path / "made")
    assert [entry.name for entry in tally[0]] == ["a.jpg", "b.jpg"]


def test_large_and_damaged_sidecars_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(words_inside, "LARGEST", 5000)
    path = picture(tmp_path / "a.jpg", XMP)
    contents = {"large.xmp": packet(" " * 5000), "cut.xmp": XMP[:-300], "deep.json": b"[" * 99_999, "list.json": b"[1]"}
    contents["large.json"] = json.dumps({"description": "x" * 5000}).encode()
    contents |= {"people.json": b'{"people": [1]}', "time.json": b'{"photoTakenTime": {"timestamp": "99999999999999"}}'}
    for name, content in contents.items():
        sidecar = tmp_path / name
        sidecar.write_bytes(content)
        texts, problems = read_texts(path, [sidecar])
        assert captions_of(texts, path)  # the picture's own
        assert [file for _, file in problems] == [str(sidecar)], name


# A folder as a table.


def test_a_folder_with_words_inside(tmp_path):
    folder = tmp_path / "album"
    picture(folder / "Lakes/IMG_0001.jpg", XMP, exif(**EXIF | {"description": ""}))
    picture(folder / "IMG_0002.jpg", exif=exif("SONY DSC", make="SONY", model="DSC-RX100"))
    picture(folder / "red hat.png")
    (folder / "red hat.txt").write_text("de=Ein roter Hut")
    picture(folder / "IMG_0003.webp")
    (folder / "IMG_0003.webp.xmp").write_bytes(packet(several("dc:subject", "beach")))
    (folder / "notes.json").write_text("{}")
    table = inspect_table(TableRequest(str(folder), language="en"))
    described = table.describe()
    counts = "title 1, description 1, keywords 2, date 1, place 1, camera 2, latitude 1, longitude 1"
    assert f"2 of 4 pictures have words inside: {counts}" in described
    assert "captions: caption (en), caption.de (de)" in described or "caption.de-DE (de-DE)" in described
    assert "left out: 1 x file that is not a picture (.json)" in described and ".xmp" not in described
    entries, _ = found(table, tmp_path)
    captions = {entry.name: list(entry.captions) for entry in entries}
    assert captions["Lakes/IMG_0001.jpg"][:3] == [("de-DE", "Ein See"), ("en", "A lake"), ("en", "Título")]
    assert captions["IMG_0002.jpg"] == [] and captions["red hat.png"] == [("de", "Ein roter Hut")]
    assert captions["IMG_0003.webp"] == [("en", "beach")]
    fields = {entry.name: texts_of(entry) for entry in entries}
    assert fields["IMG_0002.jpg"] == {"camera": "SONY DSC-RX100"} and fields["red hat.png"] == {}
    assert all(map(is_text, fields["Lakes/IMG_0001.jpg"].values()))


@pytest.mark.parametrize("way, texts", [("", ["A lake"]), ("inside", ["A lake"]), ("texts", []),
                                        ("names", ["A lake", "red hat"])])  # fmt: skip
def test_ways_to_caption_a_folder(tmp_path, way, texts):
    picture(tmp_path / "a tree.jpg", exif=exif("A lake"))
    picture(tmp_path / "red hat.jpg")
    (tmp_path / "red hat.xmp").write_bytes(packet())
    table = inspect_table(TableRequest(str(tmp_path), captions=way, language="en"))
    entries, _ = found(table, tmp_path / "made")
    assert [text for entry in entries for _, text in entry.captions] == texts
    assert (".xmp" in table.describe()) == (way == "texts")


def test_words_that_only_later_pictures_have(tmp_path, monkeypatch):
    """The first pictures decide on columns and languages; a caption whose language nobody knows is no loss."""
    monkeypatch.setattr("mural_search.tables.product_table.SAMPLE", 2)
    for name in ("a.jpg", "b.jpg"):
        picture(tmp_path / name, exif=exif(model="X"))
    picture(tmp_path / "c.jpg", exif=exif("A lake", photograph={0x9003: "2019:07:05 12:33:01"}))
    table = inspect_table(TableRequest(str(tmp_path)))
    assert "0 of the first 2 pictures have words inside: camera 2" in table.describe()
    entries, _ = found(table, tmp_path / "made")
    assert [list(entry.captions) for entry in entries] == [[], [], [("und", "A lake")]]
    assert texts_of(entries[2]) == {"date": "2019-07-05"}
    assert table.table.inside.describe() == ["1 of 3 pictures have words inside: description 1, date 1, camera 2"]


def test_a_picture_that_cannot_be_read_has_no_words(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(b"no picture")
    reader = WordsInside([path, tmp_path / "gone.jpg"], [])
    assert reader.read(path) == reader.read(tmp_path / "gone.jpg") == ([], {})
    assert reader.describe() == []
