"""The roles of a table's columns (pictures, captions, language, id, …), by their names and contents.

The choice is made from the first rows and said to the user, who can choose otherwise (`parse_choices`).

The languages of captions that do not say theirs are guessed with lingua (`Guess`). Alone, a caption of two words is
guessed wrong in a third of cases. So what languages a column holds, and how much of each, is estimated from many of its
captions at once (expectation maximisation over lingua's probabilities), and a caption is then only asked which of these
it is in. All languages take part by their scripts and by three letters at a time, which takes some 50 MB; then only the
likeliest by lingua's large models, which for all languages are a gigabyte.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from mural_lite.errors import UserError
from mural_lite.text_files import canonical_language
from mural_search.tables.own_tables import Row, Value, language_of, names_picture, texts_of

SAMPLE = 1000  # rows that are looked at
MOST = 2**14  # columns: as many as a spreadsheet has

# Usual names of columns, letters and digits alone, the likeliest first.
_IMAGE = (
    "image image.bytes img picture photo foto bild imagen immagine afbeelding obraz imagepath imagefile imagefilename "
    "picturepath photopath filepath path filename file fichier datei archivo imageurl imagelink imagesrc pictureurl "
    "photourl url link src jpg jpeg png webp image.path images pictures photos fotos bilder imágenes imagens immagini "
    "afbeeldingen obrazy obrazki zdjęcie zdjęcia 画像 图片 圖片 изображение изображения صورة"
).split()
_SHOWS = re.compile(
    r"image|img|picture|pic\d|photo|foto|bild|imagen|imágen|immagin|afbeelding|obraz|zdjęci|画像|изображ"
)
_SHOWS_LESS = re.compile(r"thumb|small|swatch|icon|logo|mask|alt|label|width|height|position|caption|title")
# What a thing is called, in the languages of shops; then what describes it at length.
_CAPTION = (
    "caption captions title titel titre titulo título titolo tytuł otsikko productname producttitle name "
    "produktname nom nomduproduit nombre nombredelproducto nome nomedoproduto nomeprodotto nazwa nazwaproduktu "
    "naam productnaam namn produktnamn navn produktnavn nimi tuotenimi název jméno názov név terméknév nume ime "
    "naziv имя название назва όνομα isim ad ürünadı nama tên 名前 商品名 名称 名稱 이름 상품명 اسم الاسم שם text "
    "texts bezeichnung sentence sentences headline タイトル 标题 標題 label alt alttext txt description "
    "descriptions shortdescription beschreibung kurzbeschreibung descripción descripcióncorta descrizione "
    "descrizionebreve descriçãocurta descrição descriptioncourte omschrijving korteomschrijving opis krótkiopis "
    "beskrivning описание"
).split()
_LANGUAGE = "language lang languagecode locale langcode sprache langue idioma lingua taal język 言語 语言 язык".split()
IDENTITIES = (
    "id sku productid productcode itemid articleid article articlenumber artikelnummer artikelnr artnr ean gtin asin "
    "upc mpn productnumber handle key uid uuid imageid itemnumber référence referencia codice ugs 商品番号"
).split()
_PARENT = (
    "parent parentsku parentid parenthandle superior padre genitore pai rodzic bovenliggend nadrzędny ascendente "
    "übergeordnet übergeordnetesprodukt överordnad родительский 親"
).split()
GROUPS = ["itemgroupid", "productgroup", "groupid"]  # which rows without a row of their own share
_SOLD = (
    "published publié veröffentlicht publicado pubblicato gepubliceerd opublikowane opublikowany publicerad udgivet "
    "опубликован опубликовано 公開 公開済み 已发布 status state active aktiv enabled"
).split()
_NO_LANGUAGE = "country countrycode land pays market region currency size status brand".split()


@dataclasses.dataclass(frozen=True)
class Columns:
    """What the columns of a table are.

    Attributes:
      images: the columns of the pictures, the main one first.
      captions: column -> language of its captions, "" where the row says it, or nobody does.
      bases: names before the language in columns such as "title_de", for columns that only later rows have.
      others: columns of the first rows that hold no captions.
      language_of_others: returns the language of a column of captions with an unlisted name; `None` for other columns.
      language: the column with the language of a row's captions, or "".
      identity: the column of the product's number or name, or "".
      parent: the column that names the product of a variation, or "".
      sold: the columns that say whether a product is for sale.
    """

    images: Sequence[str]
    captions: Mapping[str, str]
    bases: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    language: str = ""
    identity: str = ""
    parent: str = ""
    sold: tuple[str, ...] = ()
    language_of_others: Callable[[str], str | None] | None = None

    def caption_language(self, name: str) -> str | None:
        """Returns the language of a column of captions, "" if its name does not say it, None of any other column."""
        if name in self.captions:
            return self.captions[name]
        if self.language_of_others is not None:
            return self.language_of_others(name)
        base, language = split_language(name)
        return language if language and base in self.bases and name not in self.others else None

    def is_field(self, name: str) -> bool:
        """Whether a column has no meaning of its own here."""
        return name not in (*self.images, self.language, self.identity) and self.caption_language(name) is None


@functools.lru_cache(maxsize=MOST)
def plain(name: str) -> str:
    """Returns the letters, digits and points of a name, in lower case."""
    return re.sub(r"[^\w.]|_", "", name.casefold())


@functools.lru_cache(maxsize=MOST)
def split_language(name: str) -> tuple[str, str]:
    """Divides "title_de", "caption.pt-BR", "Titel (EN)" or "de" into the rest's plain name and the BCP 47 tag.

    The tag is "" where a name ends in no language.
    """
    if re.fullmatch(r"[A-Za-z]{2}[-_][A-Za-z]{2}", name) and language_of(name):
        return "", language_of(name)
    match = re.fullmatch(r"(?:(.*?)[\s_.\-:\[(/]+)?([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?)[\])\s]*", name[:200])
    if match is None:
        return plain(name), ""
    language = language_of(match[2])
    return (plain(match[1] or ""), language) if language else (plain(name), "")


_ROLE = re.compile(r"\s*(image|caption|language|id|caption\.[^=]+)=(.+)", re.S)


def parse_choices(entries: Sequence[str]) -> dict[str, list[str]]:
    """Returns role -> names of columns from "image=foto", "caption=title+text", "caption.de=titel"; or raises.

    A name may hold commas, which divide entries: what begins with no role belongs to the entry before it.
    """
    choices: dict[str, list[str]] = {}
    role = ""
    for entry in entries:
        match = _ROLE.fullmatch(entry)
        if match is None and (not role or "=" in entry):
            raise UserError(
                f"--columns: {entry!r} is not understood; expected image=, caption=, caption.de=, language= or id= "
                "with the name of a column."
            )
        if match is None:
            choices[role][-1] += f", {entry}"
            continue
        role, _, code = match[1].partition(".")
        role = f"caption.{canonical_language(code)}" if code else role
        choices[role] = match[2].split("+")
    return choices


def find_columns(
    rows: Sequence[Row], choices: Mapping[str, Sequence[str]], is_there: Callable[[Value], bool]
) -> Columns:
    """Returns what the columns of a table are.

    Args:
      rows: the first rows, at least one.
      choices: what the user says, of `parse_choices`.
      is_there: whether a value leads to a picture.

    Raises:
      UserError: no column of pictures is found, or one that was named is not there, or there are too many.
    """
    values: dict[str, list[Value]] = collections.defaultdict(list)
    for row in rows:
        for name, value in row.values.items():
            values[name].append(value)
    if len(values) > MOST:
        raise UserError(f"The table has {len(values):,} columns, expected at most {MOST:,}: is it one, in rows?")
    choices = {role: [_column(role, name, values) for name in names] for role, names in choices.items()}
    no_caption = lambda name: split_language(name)[0] not in _CAPTION  # noqa: E731 - "name_id" may be in Indonesian
    identity = _first(choices.get("id")) or _named(values, IDENTITIES, no_caption)
    images = choices.get("image") or _find_images(values, is_there, identity)
    language = _first(choices.get("language")) or _find_language(values, images)
    taken = {*images, language, *([identity] if identity not in images else [])}
    captions, bases = _find_captions({n: v for n, v in values.items() if n not in taken}, choices)
    free = {n: v for n, v in values.items() if n not in taken and n not in captions}
    identity = identity or _find_identity(free, len(rows))
    parent = _named(free, [*GROUPS, *_PARENT], lambda name: name != identity)
    sold = tuple(name for name in free if plain(name) in _SOLD)
    others = frozenset(name for name in values if name not in captions)
    language = "" if language in captions else language
    return Columns(images, captions, bases, others, language, identity, parent, sold)


def _column(role: str, name: str, values: Mapping[str, Sequence[Value]]) -> str:
    """Returns the column that a user means, ignoring spaces and signs; raises `UserError`."""
    alike = [column for column in values if plain(column) == plain(name)]
    if name in values or len(alike) == 1:
        return name if name in values else alike[0]
    if role == "caption" and plain(name) in [split_language(column)[0] for column in values]:
        return name
    near = difflib.get_close_matches(name, values, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(values)}."
    raise UserError(f"--columns: {role}={name}: the table's first rows have no such column; {hint}")


def _first(names: Sequence[str] | None) -> str:
    return names[0] if names else ""


def _named(values: Mapping[str, Sequence[Value]], names: Sequence[str], fits: Callable[[str], bool]) -> str:
    """Returns the column with the first of several names, or ""."""
    by_plain_name = {plain(name): name for name in reversed(values) if fits(name)}
    return next((by_plain_name[name] for name in names if name in by_plain_name), "")


def _find_images(values: Mapping[str, Sequence[Value]], is_there: Callable[[Value], bool], identity: str) -> list[str]:
    """Returns the column of pictures, and further columns of pictures: image_2, additional_image_link."""

    def share(name: str, tells: Callable[[Value], bool]) -> float:
        some = values[name][:50]
        return sum(map(tells, some)) / len(some)

    def quality(name: str) -> tuple:
        rank = _IMAGE.index(plain(name)) if plain(name) in _IMAGE else len(_IMAGE)
        less = bool(_SHOWS_LESS.search(plain(name)))
        return round(share(name, is_there), 1), round(share(name, names_picture), 1), not less, -rank, name != identity

    best = max(values, key=quality)
    there, look, _, rank, _ = quality(best)
    if max(there, look) < 0.5 and -rank == len(_IMAGE):
        raise UserError(
            f"No column of pictures is found among {', '.join(values)}: name it with --columns=image=NAME. It may hold "
            "names of files, addresses of downloaded pictures, or the pictures themselves (Parquet)."
        )
    shows = [name for name in values if _SHOWS.search(plain(name)) and not _SHOWS_LESS.search(plain(name))]
    is_picture = is_there if there >= 0.5 else names_picture
    return [best, *(name for name in shows if name != best and share(name, is_picture) >= 0.5)]


def _find_language(values: Mapping[str, Sequence[Value]], taken: Sequence[str]) -> str:
    named = _named(values, _LANGUAGE, lambda name: name not in taken)
    if named:
        return named
    for name, some in values.items():
        if name in taken or plain(name) in _NO_LANGUAGE or split_language(name)[1]:
            continue
        distinct = {value for value in some if isinstance(value, str)}
        is_code = all(re.fullmatch(r"[a-z]{2,3}([-_]\w{2,4})?", value.strip()) for value in distinct)
        if 1 < len(distinct) < 100 and is_code and all(language_of(value.strip()) for value in distinct):
            return name
    return ""


def _find_captions(
    values: Mapping[str, Sequence[Value]], choices: Mapping[str, Sequence[str]]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns column -> language, and the bases of columns with a language in their names."""
    texts = {name: some for name, some in values.items() if not any(isinstance(value, bytes) for value in some)}
    chosen = {name: role[8:] for role, names in choices.items() if role.startswith("caption.") for name in names}
    if chosen or "caption" in choices:
        bases = tuple(plain(name) for name in choices.get("caption", ()))
        chosen |= {name: "" for name in choices.get("caption", ()) if name in values}
        return {**_with_bases(texts, bases), **chosen}, bases
    # "caption_id" may be the number of a caption or one in Indonesian: what it holds decides.
    divided = {name: split_language(name) for name in texts}
    by_base = collections.Counter(base for name, (base, tag) in divided.items() if tag and _holds_words(texts[name]))
    names = {plain(name) for name in texts}
    base = next((name for name in _CAPTION if name in by_base or name in names), None)
    if base is None and by_base:
        base, count = by_base.most_common(1)[0]
        base = base if count > 1 else None
    if base is not None:
        columns = {name: "" for name in texts if plain(name) == base}
        return {**columns, **_with_bases(texts, (base,))}, (base,)
    wordy = max(texts, key=lambda name: _wordiness(texts[name]), default="")
    return ({wordy: ""}, ()) if wordy and _wordiness(texts[wordy]) > 0 else ({}, ())


def _with_bases(values: Mapping[str, Sequence[Value]], bases: Sequence[str]) -> dict[str, str]:
    """Returns column -> language of the columns that are one of the bases with a language, and hold words."""
    divided = {name: split_language(name) for name in values}
    named = {name: language for name, (base, language) in divided.items() if language and base in bases}
    return {name: language for name, language in named.items() if _holds_words(values[name])}


def _holds_words(values: Sequence[Value]) -> bool:
    """Whether at least half of some values are not numbers or codes: two letters in a row, or one of another script."""
    texts = [text for value in values for text in texts_of(value)]
    return 2 * sum(bool(re.search(r"[^\W\d_]{2}|[^\W\d_a-zA-Z]", text)) for text in texts) >= len(texts) > 0


def _wordiness(values: Sequence[Value]) -> float:
    """Returns how much a column looks like captions: letters, words, and no two alike; 0 if not at all."""
    texts = [text for value in values for text in texts_of(value)]
    written = [text for text in texts if sum(map(_is_of_words, text)) > len(text) / 2 and not names_picture(text)]
    if 2 * len(written) < len(texts) or not texts:
        return 0.0
    distinct = len(set(written)) / len(written)
    return distinct * min(20.0, sum(len(text) for text in written) / len(written))


def _is_of_words(character: str) -> bool:
    """Whether a character is a letter or a mark of one: Hindi's vowels are marks."""
    return unicodedata.category(character)[0] in "LM"


def _find_identity(values: Mapping[str, Sequence[Value]], rows: int) -> str:
    """Returns the first column in which (nearly) each row has a code of its own, or ""."""
    for name, some in values.items():
        texts = [value for value in some if isinstance(value, str) and not names_picture(value)]
        codes = {text for text in texts if re.fullmatch(r"(?=.*\d)[\w\-./]{2,40}", text)}
        decimal = any(re.fullmatch(r"\d+[.,]\d+|\d{4}-\d\d-\d\d.*", text) for text in codes)
        if len(texts) == rows and len(codes) > 0.95 * rows and not decimal:
            return name
    return ""


# Guessing languages.

GUESSED_FROM = 300  # captions from which the languages of a column are estimated
ROUNDS = 30
LIKELY = 8  # languages that are looked at closely
LEAST = 0.05  # share of a column's captions: languages with less are taken for mistakes


class Guess:
    """The languages of a column.

    Attributes:
      shares: BCP 47 tag -> estimated share of the captions, the largest first.
    """

    def __init__(self, texts: Sequence[str]):
        """Estimates the languages of texts; raises `UserError` if lingua is not installed."""
        some = texts[:: max(1, len(texts) // GUESSED_FROM)]
        likely = list(_shares(_probabilities(_detector(()), some), least=0.0))[:LIKELY]
        closely = _detector(tuple(likely)) if len(likely) > 1 else None
        self.shares = _shares(_probabilities(closely, some)) if closely else dict.fromkeys(likely, 1.0)
        self._few = _detector(tuple(self.shares)) if len(self.shares) > 1 else None

    def __call__(self, text: str) -> str:
        """Returns the BCP 47 tag of the likeliest language."""
        if self._few is None:
            return next(iter(self.shares), "und")
        (probabilities,) = _probabilities(self._few, [text])
        return max(self.shares, key=lambda tag: probabilities.get(tag, 0.0) * self.shares[tag])

    def describe(self) -> str:
        """Returns the languages in words."""
        return "guessed: " + ", ".join(f"{tag} {share:.0%}" for tag, share in self.shares.items())


def language_named(name: str) -> str:
    """Returns the BCP 47 tag of a language by its English name, "" if lingua is not there or does not know it."""
    try:
        import lingua
    except ImportError:
        return ""
    return next((_tag(x) for x in lingua.Language.all() if x.name.casefold() == name.casefold()), "")


def _detector(tags: Sequence[str]):
    try:
        import lingua
    except ImportError:
        raise UserError(
            "Captions do not say their language: give --language=de for all of them, name their column with "
            "--columns=language=NAME, or let it be guessed: pip install lingua-language-detector."
        ) from None
    if not tags:
        return lingua.LanguageDetectorBuilder.from_all_languages().with_low_accuracy_mode().build()
    languages = [candidate for candidate in lingua.Language.all() if _tag(candidate) in tags]
    return lingua.LanguageDetectorBuilder.from_languages(*languages).build()


def _tag(language) -> str:
    return language.iso_code_639_1.name.lower()


def _probabilities(detector, texts: Sequence[str]) -> list[dict[str, float]]:
    """Returns of each text tag -> probability, of all languages alike beforehand."""
    by_language = []
    for text in texts:
        values = detector.compute_language_confidence_values(text)
        by_language.append({_tag(guess.language): guess.value for guess in values})
    return by_language


def _shares(probabilities: Sequence[dict[str, float]], least: float = LEAST) -> dict[str, float]:
    """Returns tag -> share of the texts, by expectation maximisation; languages below `least` are left out."""
    tags = sorted({tag for guesses in probabilities for tag in guesses})
    shares = dict.fromkeys(tags, 1 / max(1, len(tags)))
    for _ in range(ROUNDS):
        counts = dict.fromkeys(tags, 0.0)
        for guesses in probabilities:
            joint = {tag: shares[tag] * value for tag, value in guesses.items()}
            total = sum(joint.values())
            for tag, value in joint.items() if total else ():
                counts[tag] += value / total
        total = sum(counts.values()) or 1.0
        shares = {tag: count / total for tag, count in counts.items()}
    kept = {tag: share for tag, share in shares.items() if share and share >= least}
    return dict(sorted(kept.items(), key=lambda item: -item[1]))
