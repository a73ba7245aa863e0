"""Words inside picture files: titles, descriptions and keywords, and the date, place and camera of a photograph.

Three standards hold them, and most programs write several: XMP (ISO 16684), IPTC's IIM and EXIF. Next to a picture may
lie an XMP sidecar (`a.jpg.xmp` of digiKam and darktable, `a.xmp` of Lightroom) and the JSON of Google Takeout. Pillow
reads the bytes and decodes no pixels; defusedxml parses XMP and refuses entities. IPTC within PNG is not read, nor XMP
behind the first 64 KB of it in a JPEG.
"""

from __future__ import annotations

import collections
import datetime
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import defusedxml.ElementTree
from PIL import Image, IptcImagePlugin

from mural_lite.pictures import FORMATS
from mural_lite.skipped import CountsByKind
from mural_lite.text_files import clean, is_text, parse_object

LARGEST = 2**22  # bytes of XMP or JSON; larger files hold the history of edits, stroke by stroke
TAKEOUT_LENGTH = 46  # characters of a picture's name that Google Takeout keeps in the name of its JSON
CUT_LENGTH = 60  # bytes; IPTC cuts titles and keywords at 64, or before the character there
CAPTIONS = ("title", "description", "keywords")  # in the order in which an item shows them
FIELDS = ("date", "place", "camera", "people", "latitude", "longitude")
PLACES = ("location", "city", "state", "country")
DATES = ("taken", "created", "digitized")  # the likeliest first

# {name: [(language as the file writes it or "", text)]} of everything that one or several sources say.
Texts = dict[str, list[tuple[str, str]]]


class Caption(NamedTuple):
    """A text that somebody wrote; `name` is one of `CAPTIONS`, `language` a code as the file writes it, or ""."""

    name: str
    language: str
    text: str


class WordsInside:
    """Reads the words inside pictures, and counts them.

    Args:
      pictures: the files of the pictures.
      others: files that may be their sidecars.

    Attributes:
      sidecars: the files next to pictures that are read.
      problems: (problem, file) of metadata that cannot be read; their pictures stay.
    """

    def __init__(self, pictures: Iterable[pathlib.Path] = (), others: Iterable[pathlib.Path] = ()):
        files = {str(path).lower(): path for path in others if path.suffix.lower() in (".xmp", ".json")}
        self._sidecars = {path: sidecars_of(path, files) for path in pictures}
        self.sidecars = set().union(*self._sidecars.values())
        self.begin()

    def begin(self) -> None:
        """Sets all counts to 0 and empties `problems`, before a new pass over the pictures."""
        self.problems: list[tuple[str, str]] = []
        self._read = 0
        self._with_words = 0
        self._counts = dict.fromkeys((*CAPTIONS, *FIELDS), 0)

    def read(self, picture: pathlib.Path) -> tuple[list[Caption], dict[str, str]]:
        """Returns (captions of a picture, {name of `FIELDS`: text}), and counts them; ([], {}) for another file."""
        if picture not in self._sidecars:
            return [], {}
        texts, problems = read_texts(picture, self._sidecars[picture])
        self.problems += problems
        captions = captions_of(texts, picture)
        fields = fields_of(texts)
        self._read += 1
        if captions:
            self._with_words += 1
        for name in {caption.name for caption in captions} | fields.keys():
            self._counts[name] += 1
        return captions, fields

    def describe(self) -> list[str]:
        """Returns lines to print: how many pictures have words, and each problem with its count and first file."""
        counts = CountsByKind()
        for problem, file in self.problems:
            counts.add(problem, file)
        lines = counts.lines()
        numbers = ", ".join(f"{name} {count:,}" for name, count in self._counts.items() if count)
        if numbers:
            pictures = f"{self._read:,} pictures"
            if self._read < len(self._sidecars):
                pictures = f"the first {pictures}"
            lines.insert(0, f"{self._with_words:,} of {pictures} have words inside: {numbers}")
        return lines


def sidecars_of(picture: pathlib.Path, files: Mapping[str, pathlib.Path]) -> list[pathlib.Path]:
    """Returns the XMP sidecar and the JSON of a picture, if they are in `files`: {path in small letters: path}.

    Takeout calls the JSON of "a.jpg" "a.jpg.supplemental-metadata.json", cut off anywhere where the name is long, and
    the JSON of "a(1).jpg" "a.jpg.supplemental-metadata(1).json"; "a-edited.jpg" has the JSON of "a.jpg".
    """
    folder, name = os.path.split(str(picture).lower())
    stem, ending = os.path.splitext(name)
    original, number = re.fullmatch(r"(.+?)(?:-edited)?(\(\d+\))?", stem, re.S).groups("")
    full_name = f"{original}{ending}.supplemental-metadata"
    shortest = min(len(original + ending), TAKEOUT_LENGTH)
    takeout_names = [f"{full_name[:length]}{number}.json" for length in range(len(full_name), shortest - 1, -1)]
    sidecars = []
    for names in ([f"{name}.xmp", f"{stem}.xmp"], [f"{name}.json", *takeout_names]):
        for candidate in names:
            path = os.path.join(folder, candidate)
            if path in files:
                sidecars.append(files[path])
                break
    return sidecars


def read_texts(picture: pathlib.Path, sidecars: Sequence[pathlib.Path]) -> tuple[Texts, list[tuple[str, str]]]:
    """Returns (the texts of a picture and its sidecars, [(problem, file)] for metadata that cannot be read).

    The texts of an XMP sidecar take the place of other texts of the same names: programs that edit texts write them
    there, and leave the picture itself as it is.
    """
    attempts = [(picture, *attempt) for attempt in _read_inside(picture)]
    attempts += [(path, *_attempt(_read_sidecar, path, f"{path.suffix} file")) for path in sidecars]
    texts: Texts = {}
    edited: Texts = {}
    problems = []
    for file, content, problem in attempts:
        if problem:
            problems.append((problem, str(file)))
        if file.suffix.lower() == ".xmp":
            edited = content
            continue
        for name, values in content.items():
            texts.setdefault(name, []).extend(values)
    return texts | edited, problems


def _read_inside(picture: pathlib.Path) -> list[tuple[Texts, str]]:
    """Returns (texts, problem or "") for each standard in a picture; [] for a picture that Pillow cannot open.

    An unreadable picture is not a problem here: it is reported when it is encoded.
    """
    try:
        if not picture.is_file():  # a pipe would wait
            return []
        with picture.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            return [
                _attempt(read_xmp, image.info.get("xmp"), "XMP"),
                _attempt(read_iptc, image, "IPTC"),
                _attempt(read_exif, image, "EXIF"),
                _attempt(read_position, image, "position in EXIF"),
            ]
    except Exception:  # noqa: BLE001 - Pillow raises many classes
        return []


def _attempt(read: Callable[[Any], Texts], source: Any, source_name: str) -> tuple[Texts, str]:
    """Returns (the texts that `read` finds in a source, problem); the problem is "" unless the source is damaged."""
    texts: Texts = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            texts = read(source)
            is_damaged = any("Corrupt" in str(warning.message) for warning in caught)  # Pillow reads what it can
        except Exception:  # noqa: BLE001 - damaged metadata raise many classes
            is_damaged = True
    problem = ""
    if is_damaged:
        problem = f"{source_name} that is damaged or too large; the picture is used"
    return texts, problem


def _read_sidecar(path: pathlib.Path) -> Texts:
    """Returns the texts of an XMP or JSON file; raises for a file that is damaged or too large."""
    with path.open("rb") as file:
        content = file.read(LARGEST)  # a larger file is cut off and does not parse
    if path.suffix.lower() == ".xmp":
        return read_xmp(content)
    return read_takeout(content)


# Each standard.

_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Names of dc, photoshop, Iptc4xmpCore, Iptc4xmpExt, tiff, exif and xmp; no name has two meanings in these schemas.
_XMP = {
    "title": "title", "Headline": "title", "description": "description", "UserComment": "description",
    "subject": "keywords", "Location": "location", "City": "city", "State": "state", "Country": "country",
    "DateTimeOriginal": "taken", "DateCreated": "created", "CreateDate": "digitized", "PersonInImage": "people",
    "GPSLatitude": "latitude", "GPSLongitude": "longitude", "Make": "make", "Model": "model",
    "TagsList": "/", "LastKeywordXMP": "/", "hierarchicalSubject": "|",  # keywords below others: "Places/Paris"
}  # fmt: skip
_OF_PROGRAMS = ("darktable", "_Digikam_Internal_Tags_")  # keywords below these are notes of programs: "exported"


def read_xmp(data: bytes | None) -> Texts:
    """Returns the texts of a packet of XMP, {} without one.

    Raises errors of several classes for XML that is damaged, defines entities, or is too large.
    """
    texts: Texts = {}
    if not data:
        return texts
    if len(data) > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes")
    root = defusedxml.ElementTree.fromstring(data.rstrip(b"\0 "), forbid_dtd=True)  # files pad it
    for description in root.iterfind(f".//{_RDF}RDF/{_RDF}Description"):
        properties = [(name, [("", text)]) for name, text in description.items()]
        properties += [(element.tag, _values_of(element)) for element in description]
        for tag, values in properties:
            _, _, property_name = tag.rpartition("}")
            if property_name in _XMP:
                texts.setdefault(_XMP[property_name], []).extend(values)
    if texts.keys() & {"keywords", "/", "|"}:  # the paths of keywords are named by the marks between their levels
        texts["keywords"] = _take_keywords(texts)
    return texts


def _take_keywords(texts: Texts) -> list[tuple[str, str]]:
    """Removes the paths from XMP's texts; returns [(language, keyword)]: its keywords, and each level of the paths.

    The texts named "/" are paths such as "Places/Paris", and "|" is the name of paths such as "Places|Paris". Notes of
    programs are left out.
    """
    keywords = list(texts.get("keywords", ()))
    program_notes = set()
    for mark in "/|":
        for _, path in texts.pop(mark, ()):
            levels = path.split(mark)
            keywords += [("", word) for word in reversed(levels)]
            if levels[0] in _OF_PROGRAMS:
                program_notes.update(levels)
    return [(language, word) for language, word in keywords if word not in program_notes]


def _values_of(element) -> list[tuple[str, str]]:
    """Returns [(language or "", text)] of an XMP property, an XML element: of each item of a list or alternative."""
    items = element.findall(f"*/{_RDF}li") or [element]
    return [(item.get(_LANGUAGE, ""), item.text or "") for item in items]


_IPTC = {
    5: "title", 105: "title", 120: "description", 25: "keywords", 55: "created", 92: "location", 90: "city",
    95: "state", 101: "country",
}  # fmt: skip


def read_iptc(image: Image.Image) -> Texts:
    """Returns the texts of an image's IPTC data; number 5 of `_IPTC` is the data set 2:05, and so on."""
    data = IptcImagePlugin.getiptcinfo(image) or {}
    is_utf8 = data.get((1, 90)) == b"\x1b%G"  # CodedCharacterSet: the escape sequence of UTF-8
    texts: Texts = {}
    for number, name in _IPTC.items():
        values = data.get((2, number)) or []
        if not isinstance(values, list):
            values = [values]
        for value in values:
            if is_utf8:
                text = value.decode("utf-8", "ignore")  # the last character may be cut
            else:
                text = _decoded(value)
            texts.setdefault(name, []).append(("", text))
    return texts


_EXIF = {0x010E: "description", 0x010F: "make", 0x0110: "model", 0x0131: "software"}
_EXIF_OF_PHOTOGRAPH = {0x9003: "taken", 0x9004: "digitized"}
_EXIF_OF_WINDOWS = {0x9C9B: "title", 0x9C9C: "description", 0x9C9E: "keywords"}
_PHOTOGRAPH = 0x8769  # the directory of the photograph
_POSITION = 0x8825  # the directory of GPS
_COMMENT = 0x9286  # UserComment


def read_exif(image: Image.Image) -> Texts:
    """Returns the texts of an image's EXIF data, with the tags that Windows adds and the user's comment."""
    exif = Image.Image.getexif(image)  # PNG's own method decodes the pixels
    photograph = exif.get_ifd(_PHOTOGRAPH)
    texts: Texts = {}
    for tags, names in ((exif, _EXIF), (photograph, _EXIF_OF_PHOTOGRAPH)):
        for tag, name in names.items():
            if tag in tags:
                texts[name] = [("", _decoded(tags[tag]))]
    for tag, name in _EXIF_OF_WINDOWS.items():
        data = bytes(exif.get(tag, b""))
        text = data.decode("utf-16-le", "ignore").rstrip("\0")
        parts = [text]
        if name == "keywords":
            parts = text.split(";")
        texts.setdefault(name, []).extend(("", part) for part in parts)
    comment = _comment(photograph.get(_COMMENT, b""), is_big=exif.endian == ">")
    texts["description"].append(("", comment))
    return texts


def read_position(image: Image.Image) -> Texts:
    """Returns latitude and longitude of an image's EXIF data, as `_degrees` reads them: "47.0000000,22.6000000N"."""
    position = Image.Image.getexif(image).get_ifd(_POSITION)
    texts: Texts = {}
    for tag, direction_tag, name in ((2, 1, "latitude"), (4, 3, "longitude")):
        degrees = ",".join(f"{float(part):.7f}" for part in position.get(tag, ()))
        texts[name] = [("", f"{degrees}{position.get(direction_tag, '')}")]
    return texts


def _decoded(value: str | bytes) -> str:
    """Returns the text of bytes in UTF-8, as most programs write it, or else in Windows' Latin-1.

    `value`: the bytes, or a text of EXIF, which are bytes that Pillow has read as Latin-1.
    """
    data = value.encode("latin-1") if isinstance(value, str) else value
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _comment(data: bytes, is_big: bool) -> str:
    """Returns the text of EXIF's UserComment, whose first eight bytes name the encoding.

    `is_big`: whether the most significant byte comes first in the EXIF data.
    """
    encoding = data[:8].rstrip(b"\0 ")
    text = data[8:]
    if encoding in (b"", b"ASCII"):
        return _decoded(text)
    if encoding != b"UNICODE":
        return _decoded(data)
    # Many programs write another byte order here than the data's. Latin letters have a 0 as every second byte.
    even_zeros = text[::2].count(0)
    odd_zeros = text[1::2].count(0)
    if even_zeros != odd_zeros:
        is_big = even_zeros > odd_zeros
    codec = "utf-16-be" if is_big else "utf-16-le"
    return text.decode(codec, "ignore")


def read_takeout(data: bytes) -> Texts:
    """Returns the texts of Google Takeout's JSON of a picture; its date is UTC's. Raises for damaged JSON."""
    values = parse_object(data)
    position = values.get("geoData", {})
    texts = {name: [("", str(position.get(name, "")))] for name in ("latitude", "longitude")}
    texts["description"] = [("", str(values.get("description", "")))]
    texts["people"] = [("", str(person.get("name", ""))) for person in values.get("people", ())]
    seconds = int(values.get("photoTakenTime", {}).get("timestamp", 0))
    if seconds:
        taken = datetime.date(1970, 1, 1) + datetime.timedelta(seconds=seconds)
        texts["created"] = [("", taken.isoformat())]
    return texts


# Captions and fields.

_MAKERS = "canon|casio|fuji(film)?|hp|kodak|(konica )?minolta|nikon|olympus|panasonic|pentax|samsung|sony|vivitar"
# Words that cameras and programs write where nobody wrote anything: modes of Huawei's cameras, settings as JSON.
_DEFAULT = re.compile(
    rf"(({_MAKERS}) )?(digital (still )?camera|dsc|dcim|camera pictures)|{_MAKERS}|exif[ _]jpe?g([ _]picture)?|"
    r"default|untitled|image( description)?|user comments?|ascii|unicode|none|screen ?shot|my beautiful picture|"
    r"(created|made|processed|edited) (with|by|in) (gimp|picasa|snapseed|vsco|instagram|adobe|canva)\b.*|creator: .*|"
    r"edf|cof|sdr|rbt|dav|ptr|nor|bty|mde|fbt|v?r?hdr|hdrpl|oznor|[a-z]+:[a-z]+=.*|charset=.*|[{<\[].*",
    re.I | re.S,
)


def captions_of(texts: Texts, picture: pathlib.Path) -> list[Caption]:
    """Returns the different texts of a picture that somebody wrote: titles, descriptions, keywords."""
    technical = []
    for name in ("make", "model", "software"):
        technical += [_plain(text) for _, text in texts.get(name, ())]
    captions = []
    for name in CAPTIONS:
        for language, text in texts.get(name, ()):
            code = "" if language == "x-default" else language
            caption = Caption(name, code, _plain(text))
            if caption.text not in technical and _is_written(caption, picture):
                captions.append(caption)
    different = dict.fromkeys(captions)  # in order
    return [caption for caption in different if not any(_repeats(caption, other) for other in different)]


def _is_written(caption: Caption, picture: pathlib.Path) -> bool:
    """Whether somebody wrote a text: it has words, and is neither the picture's name nor a text of `_DEFAULT`."""
    is_word = str.isalnum if caption.name == "keywords" else str.isalpha  # "2019" is a keyword, but not a title
    if not any(map(is_word, caption.text)):
        return False
    is_numbered_name = caption.text == picture.stem and not caption.text.isalpha()
    is_default = caption.text == picture.name or _DEFAULT.fullmatch(caption.text) is not None
    return not is_numbered_name and not is_default


def _plain(text: str) -> str:
    """Returns a text in one line, with single spaces; "" for a text with characters that no text has."""
    text = clean(text.replace("\0", " "))
    return text if is_text(text) and "\ufffd" not in text else ""


def _repeats(caption: Caption, other: Caption) -> bool:
    """Whether a caption without a language repeats another with a language, or is the start that IPTC left of it."""
    if caption.language or not other.text.startswith(caption.text):
        return False
    if caption.text == other.text:
        return bool(other.language)
    return len(caption.text.encode()) >= CUT_LENGTH


def fields_of(texts: Texts) -> dict[str, str]:
    """Returns {name of `FIELDS`: text} for the known fields of a picture: "date" is "2019-07-05", "2019-07" or "2019".

    "latitude" and "longitude" are degrees north and east.
    """
    plain = collections.defaultdict(list)  # name -> texts
    for name, values in texts.items():
        plain[name] = [_plain(text) for _, text in values]
    dates = []
    for name in DATES:
        dates += map(_date, plain[name])
    camera = _first(plain["model"])
    maker = _first(plain["make"])
    if camera.split(" ")[0].casefold() != maker.split(" ")[0].casefold():  # not "NIKON CORPORATION NIKON D70"
        camera = f"{maker} {camera}".strip()
    fields = {
        "date": _first(dates),
        "place": _joined(_first(plain[name]) for name in PLACES),
        "camera": camera,
        "people": _joined(plain["people"]),
    }
    latitude = _degrees(_first(plain["latitude"]))
    longitude = _degrees(_first(plain["longitude"]))
    if latitude and longitude:  # 0 where they are not known
        fields |= {"latitude": f"{latitude:.5f}", "longitude": f"{longitude:.5f}"}
    return {name: text for name, text in fields.items() if text}


def _first(texts: Iterable[str]) -> str:
    """Returns the first text that is not empty, or ""."""
    return next(filter(None, texts), "")


def _joined(texts: Iterable[str]) -> str:
    """Returns the different texts that are not empty, with ", " between them."""
    different = dict.fromkeys(filter(None, texts))
    return ", ".join(different)


def _date(text: str) -> str:
    """Returns "2019-07-05", "2019-07" or "2019" for a date as XMP, IPTC or EXIF writes it, "" for other texts."""
    match = re.match(r"([12]\d{3})(?:[-:]?(\d\d)(?:[-:]?(\d\d))?)?(?!\d)", text)
    if not match:
        return ""
    year, month, day = match.groups("00")  # "00", in dates too, for a month or a day that is not known
    if month == "00":
        return year
    try:
        datetime.date(int(year), int(month), int(day) or 1)
    except ValueError:
        return ""
    if day == "00":
        return f"{year}-{month}"
    return f"{year}-{month}-{day}"


def _degrees(text: str) -> float | None:
    """Returns the degrees in "47,22.6N", "47,22,36.8S" or "-8.54"; None for other texts."""
    parts = text.rstrip("NSEW").split(",")  # degrees, minutes, seconds
    try:
        degrees = sum(float(part) / 60**power for power, part in enumerate(parts))
    except ValueError:
        return None
    if not abs(degrees) <= 180:  # NaN, too, which a fraction with a denominator of 0 gives
        return None
    return -degrees if text.endswith(("S", "W")) else degrees
