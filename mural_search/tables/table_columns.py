"""The roles of a table's columns (pictures, captions, language, id, …), by their names and contents.

The choice is made from the first rows and shown to the user, who can choose otherwise (`parse_choices`).

The languages of captions without a language are guessed with lingua (`Guess`). It guesses a caption of two words wrong
in a third of cases. So the languages of a column and their shares are estimated from many of its captions at once
(expectation maximisation over lingua's probabilities), and each caption is then assigned to one of these. All languages
take part by their scripts and by three letters at a time, which takes some 50 MB; then only the likeliest by lingua's
large models, which for all languages are a gigabyte.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

import langcodes
import numpy as np

from mural_lite.errors import UserError
from mural_lite.progress import announce
from mural_lite.text_files import canonical_language
from mural_search.fields import OF_PRICES
from mural_search.tables.own_tables import language_of
from mural_search.tables.table_rows import Row, Value, names_picture, texts_of

Values = Mapping[str, Sequence[Value]]  # {column: values of the first rows}
SAMPLE = 1000  # first rows by which the roles are found
MOST = 2**14  # columns: as many as a spreadsheet has

# Usual names of columns, only letters and digits, the likeliest first.
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
# Names of products, in the languages of shops; then descriptions at length.
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
    "опубликован опубликовано 公開 公開済み 已发布 status state active aktiv enabled visibilityincatalog "
    "sichtbarkeitimkatalog visibilitédanslecatalogue visibilidadenelcatálogo visibilitànelcatalogo "
    "zichtbaarheidincatalogus visibilidadenocatálogo widocznośćwkatalogu"
).split()
# Names of amounts, besides prices; numbers that differ are not ids there.
_AMOUNTS = re.compile(
    r"stock(?!code|n|id)|qty|quantity|inventory|bestand|vorrat|voorraad|existencias|giacenza|estoque|stany|lager$|在庫|库存|المخزون|"
    r"net$|netto|gross|brutto|amount|betrag|costs?$|kosten|msrp|rrp|uvp|weight|gewicht|width|height|length|breite|höhe",
    re.I,
)
_NO_LANGUAGE = "country countrycode land pays market region currency size status brand".split()


@dataclasses.dataclass(frozen=True)
class Columns:
    """The roles of a table's columns.

    Attributes:
      images: the columns of the pictures, the main column first.
      captions: {column: BCP 47 tag of its captions' language}; "" where rows name the language, or nothing does.
      bases: plain names before the language, "title" of "title_de", by which columns of captions that only later rows
        have are known.
      others: columns of the first rows that hold no captions.
      language: the column with the language of a row's captions, or "".
      identity: the column of the product's number or name, or "".
      parent: the column that names the product of a variation, or "".
      sold: the columns that say whether a product is for sale.
      language_of_others: a function that returns the language of a column that is not in `captions`, "" if the column
        does not say it, and `None` if it holds no captions; `None` for no such function.
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
        """Returns the BCP 47 tag of a column of captions, "" if the column does not say it; `None` for any other."""
        if name in self.captions:
            return self.captions[name]
        if self.language_of_others is not None:
            return self.language_of_others(name)
        base, language = split_language(name)
        if language and base in self.bases and name not in self.others:
            return language
        return None

    def is_field(self, name: str) -> bool:
        """Whether a column's values are fields: it has no role, or only the role `parent` or `sold`."""
        return name not in (*self.images, self.language, self.identity) and self.caption_language(name) is None


@functools.lru_cache(maxsize=MOST)
def plain(name: str) -> str:
    """Returns the letters, digits and points of a name, in lower case: "imageurl" for "Image_URL"."""
    return re.sub(r"[^\w.]|_", "", name.casefold())


@functools.lru_cache(maxsize=MOST)
def split_language(name: str) -> tuple[str, str]:
    """Returns (plain name without the language, BCP 47 tag) of a column's name that ends in a language.

    For example ("title", "de") for "title_de", ("titel", "en") for "Titel (EN)", and ("", "de") for "de". The tag is ""
    for a name that does not end in a language.
    """
    if re.fullmatch(r"[A-Za-z]{2}[-_][A-Za-z]{2}", name) and language_of(name):
        return "", language_of(name)
    match = re.fullmatch(r"(?:(.*?)[\s_.\-:\[(/]+)?([A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?)[\])\s]*", name[:200])
    if match:
        base, code = match.groups("")
        language = language_of(code)
        if language:
            return plain(base), language
    return plain(name), ""


_ROLE = re.compile(r"\s*(image|caption|language|id|caption\.[^=]+)=(.+)", re.S)


def parse_choices(entries: Sequence[str]) -> dict[str, list[str]]:
    """Returns the columns that a user chose for roles, {role: names of columns}.

    For example {"image": ["foto"], "caption": ["title", "text"], "caption.de": ["titel"]}.

    Args:
      entries: the value of the flag --columns, divided at its commas: ["image=foto", "caption=title+text", …].

    Raises:
      UserError: an entry has no role that is known.
    """
    choices: dict[str, list[str]] = {}
    role = ""
    for entry in entries:
        match = _ROLE.fullmatch(entry)
        if match is not None:
            role, _, code = match[1].partition(".")
            if code:
                role = f"caption.{canonical_language(code)}"
            choices[role] = match[2].split("+")
        elif role and "=" not in entry:  # a name with a comma was divided: this is its rest
            choices[role][-1] += f", {entry}"
        else:
            raise UserError(
                f"--columns: {entry!r} is not understood; expected image=, caption=, caption.de=, language= or id= "
                "with the name of a column."
            )
    return choices


def find_columns(
    rows: Sequence[Row],
    choices: Mapping[str, Sequence[str]],
    is_there: Callable[[Value], bool],
    notes: Iterable[str] = (),
) -> Columns:
    """Returns the roles of a table's columns: the user's choices, and for other roles the likeliest columns.

    Args:
      rows: the first rows, at least one.
      choices: the user's choices, from `parse_choices`.
      is_there: whether the value of a cell leads to a picture.
      notes: notes on the table, for a message.

    Raises:
      UserError: no column of pictures is found, a chosen column is not there, or there are too many columns.
    """
    values = _values_by_column(rows)
    chosen: dict[str, list[str]] = {}
    for role, names in choices.items():
        chosen[role] = [_column(role, name, values) for name in names]
    not_captions = [name for name in values if split_language(name)[0] not in _CAPTION]  # "name_id" may be Indonesian
    identity = chosen.get("id", [""])[0] or _first_named(not_captions, IDENTITIES)
    images = chosen.get("image") or _find_images(values, is_there, identity, notes)
    language = chosen.get("language", [""])[0] or _find_language(values, images)
    names_with_role = {*images, language, identity}
    free_columns = {name: column for name, column in values.items() if name not in names_with_role}
    captions, bases = _find_captions(free_columns, chosen)
    free_columns = {name: column for name, column in free_columns.items() if name not in captions}
    identity = identity or _find_identity(free_columns, len(rows))
    parent = _first_named([name for name in free_columns if name != identity], [*GROUPS, *_PARENT])
    sold = tuple(name for name in free_columns if plain(name) in _SOLD)
    others = frozenset(name for name in values if name not in captions)
    if language in captions:  # the user chose the column for captions
        language = ""
    return Columns(
        images=images,
        captions=captions,
        bases=bases,
        others=others,
        language=language,
        identity=identity,
        parent=parent,
        sold=sold,
    )


def _values_by_column(rows: Sequence[Row]) -> dict[str, list[Value]]:
    """Returns {column: its values in the rows that have it}; raises `UserError` for too many columns."""
    values: dict[str, list[Value]] = collections.defaultdict(list)
    for row in rows:
        for name, value in row.values.items():
            values[name].append(value)
    if len(values) > MOST:
        raise UserError(f"The table has {len(values):,} columns, expected at most {MOST:,}: is it one, in rows?")
    return values


def _column(role: str, name: str, values: Values) -> str:
    """Returns the column that a user means by a name for a role, also if they differ in spaces, signs and capitals.

    For captions a name may be the base of columns with languages: "title" for "title_de" and "title_en". Raises
    `UserError` if there is no such column.
    """
    similar_columns = [column for column in values if plain(column) == plain(name)]
    is_base = role == "caption" and any(plain(name) == split_language(column)[0] for column in values)
    if name not in values and len(similar_columns) == 1:
        return similar_columns[0]
    if name in values or is_base:
        return name
    similar_names = difflib.get_close_matches(name, values, 1)
    hint = f"did you mean {similar_names[0]!r}?" if similar_names else f"it has {', '.join(values)}."
    raise UserError(f"--columns: {role}={name}: the table's first rows have no such column; {hint}")


def _first_named(columns: Sequence[str], plain_names: Sequence[str]) -> str:
    """Returns the column whose plain name comes first among `plain_names`, "" if no column has any of these."""
    by_plain_name = {plain(column): column for column in reversed(columns)}  # the first of columns with equal names
    for plain_name in plain_names:
        if plain_name in by_plain_name:
            return by_plain_name[plain_name]
    return ""


def _find_images(values: Values, is_there: Callable[[Value], bool], identity: str, notes: Iterable[str]) -> list[str]:
    """Returns the columns of pictures: the likeliest first, then further columns such as "image_2".

    Args:
      values: {column: values of the first rows}.
      is_there: whether the value of a cell leads to a picture.
      identity: the column of ids, which loses to a column that is as likely; "" without one.
      notes: notes on the table, for the message.

    Raises:
      UserError: no column is likely to hold pictures.
    """

    def picture_share(name: str, is_picture: Callable[[Value], bool]) -> float:
        """Returns the share, 0 to 1, of a column's first values that are pictures by a test."""
        first_values = values[name][:50]  # a few, because each picture may be looked for on disk
        return sum(map(is_picture, first_values)) / len(first_values)

    def likelihood(name: str) -> tuple:
        """Returns a column's rank among the columns, the largest of which most likely holds the pictures.

        The shares of existing pictures and of names of pictures decide; between equal columns, their names.
        """
        # In tenths, because the column's name decides between columns that are nearly as good.
        existing_share = round(picture_share(name, is_there), 1)
        named_share = round(picture_share(name, names_picture), 1)
        is_large = not _SHOWS_LESS.search(plain(name))
        usualness = 0
        if plain(name) in _IMAGE:
            usualness = len(_IMAGE) - _IMAGE.index(plain(name))
        return existing_share, named_share, is_large, usualness, name != identity

    main_column = max(values, key=likelihood)
    existing_share, named_share, *_ = likelihood(main_column)
    if max(existing_share, named_share) < 0.5 and plain(main_column) not in _IMAGE:  # a usual name is enough
        hint = "".join(f" Note: {note}." for note in notes)
        raise UserError(
            f"No column of pictures is found among {', '.join(values)}: name it with --columns=image=NAME. It may hold "
            f"names of files, addresses of downloaded pictures, or the pictures themselves.{hint}"
        )
    candidates = [name for name in values if _SHOWS.search(plain(name)) and not _SHOWS_LESS.search(plain(name))]
    is_picture = is_there if existing_share >= 0.5 else names_picture
    further_columns = [name for name in candidates if name != main_column and picture_share(name, is_picture) >= 0.5]
    return [main_column, *further_columns]


def _find_language(values: Values, taken: Sequence[str]) -> str:
    """Returns the column with each row's language, known by its name or its codes ("en", "pt_BR"); "" without one.

    Columns that are `taken` are not considered.
    """
    free = [name for name in values if name not in taken]
    language_column = _first_named(free, _LANGUAGE)
    if language_column:
        return language_column
    for name in free:
        if plain(name) in _NO_LANGUAGE or split_language(name)[1]:
            continue
        texts = {value.strip() for value in values[name] if isinstance(value, str)}
        if _are_language_codes(texts):
            return name
    return ""


TOO_MANY_LANGUAGES = 100  # different texts of a column: more than the languages of any shop
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}([-_]\w{2,4})?")


def _are_language_codes(texts: set[str]) -> bool:
    """Whether the different texts of a column are codes of languages, and of nothing else.

    Most pairs of letters are the code of a language: the words "si" and "no", the units "kg" and "ml", and the
    countries "it" and "de". So at least one text must be the code of a language but not of a country: "en" or "ja".
    """
    # The only value of a column may be a word, for example the color "or".
    if len(texts) < 2 or len(texts) >= TOO_MANY_LANGUAGES:
        return False
    for text in texts:
        if not _LANGUAGE_CODE.fullmatch(text) or not language_of(text):
            return False
    are_countries = all(langcodes.tag_is_valid(f"und-{text[:2].upper()}") for text in texts)
    return not are_countries


def _find_captions(values: Values, choices: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the columns of captions, as the attributes (captions, bases) of `Columns`.

    Args:
      values: the columns that have no other role.
      choices: {role: columns} that the user chose.
    """
    texts = {name: column for name, column in values.items() if bytes not in map(type, column)}
    with_language = _columns_with_language(texts)
    chosen: dict[str, str] = {}  # {column: language}
    for role, names in choices.items():
        if role.startswith("caption."):
            chosen |= dict.fromkeys(names, role.removeprefix("caption."))
    if chosen or "caption" in choices:
        names = choices.get("caption", ())
        bases = tuple(map(plain, names))  # a chosen name may be the base of columns with languages
        chosen |= {name: "" for name in names if name in values}
        return {**_columns_of_bases(with_language, bases), **chosen}, bases
    base = _caption_base(texts, with_language)
    if base is not None:
        columns = {name: "" for name in texts if plain(name) == base}
        return {**columns, **_columns_of_bases(with_language, (base,))}, (base,)
    wordiness = {name: _wordiness(column) for name, column in texts.items()}
    wordiest = max(wordiness, key=wordiness.get, default="")
    if wordiest and wordiness[wordiest] > 0:
        return {wordiest: ""}, ()
    return {}, ()


def _caption_base(texts: Values, with_language: Mapping[str, tuple[str, str]]) -> str | None:
    """Returns the plain name, without a language, of the columns of captions; `None` if no name is likely.

    It is the usual name of captions that comes first in `_CAPTION`, or else the name with the most languages, at least
    two. `with_language` is from `_columns_with_language`.
    """
    counts = collections.Counter(base for base, _ in with_language.values())
    names = {*map(plain, texts), *counts}
    for usual_name in _CAPTION:
        if usual_name in names:
            return usual_name
    bases = [base for base, count in counts.most_common() if count > 1]
    return bases[0] if bases else None


def _columns_with_language(values: Values) -> dict[str, tuple[str, str]]:
    """Returns {column: (base, language)} of the columns whose names end in a language, and which hold words.

    For example "caption_id" may be a caption's number or a caption in Indonesian: its values decide.
    """
    columns = {}
    for name, column in values.items():
        base, language = split_language(name)
        if language and _holds_words(column):
            columns[name] = base, language
    return columns


def _columns_of_bases(with_language: Mapping[str, tuple[str, str]], bases: Sequence[str]) -> dict[str, str]:
    """Returns {column: language} of the columns from `_columns_with_language` that have these bases."""
    return {name: language for name, (base, language) in with_language.items() if base in bases}


def _holds_words(values: Sequence[Value]) -> bool:
    """Whether at least half of a column's texts hold a word: two letters in a row, or a letter that is not Latin."""
    texts = _all_texts(values)
    with_words = [text for text in texts if re.search(r"[^\W\d_]{2}|[^\W\d_a-zA-Z]", text)]
    return 2 * len(with_words) >= len(texts) > 0


def _all_texts(values: Sequence[Value]) -> list[str]:
    """Returns the texts of several values, in order."""
    return list(itertools.chain.from_iterable(map(texts_of, values)))


def _wordiness(values: Sequence[Value]) -> float:
    """Returns how much a column looks like captions, 0 to 20.

    It is the mean length of its texts of words, at most 20, times the share of different texts; 0 if fewer than half of
    the texts consist mostly of letters.
    """
    texts = _all_texts(values)
    worded = [text for text in texts if sum(map(_is_of_words, text)) > len(text) / 2 and not names_picture(text)]
    if 2 * len(worded) < len(texts) or not texts:
        return 0.0
    different_share = len(set(worded)) / len(worded)
    mean_length = sum(map(len, worded)) / len(worded)
    # From 20 characters on a text is as long as the name of a product, and a description shall not count as better.
    return different_share * min(20.0, mean_length)


def _is_of_words(character: str) -> bool:
    """Whether a character is a letter or a mark of a letter: Hindi's vowels are marks."""
    return unicodedata.category(character)[0] in "LM"


def _find_identity(values: Values, rows: int) -> str:
    """Returns the first column with a text in each of the `rows` rows, nearly all different codes; "" without one.

    A code, such as "A-12", has a digit. Columns of prices, other amounts and dates do not count.
    """
    for name, column in values.items():
        if OF_PRICES.search(name) or _AMOUNTS.search(plain(name)):
            continue
        texts = [value for value in column if isinstance(value, str) and not names_picture(value)]
        codes = {text for text in texts if re.fullmatch(r"(?=.*\d)[\w\-./]{2,40}", text)}
        are_amounts_or_dates = any(re.fullmatch(r"\d+[.,]\d+|\d{4}-\d\d-\d\d.*", text) for text in codes)
        if len(texts) == rows and len(codes) > 0.95 * rows and not are_amounts_or_dates:
            return name
    return ""


# Guessing languages.

GUESSED_FROM = 300  # captions from which the languages of a column are estimated
ROUNDS = 30  # of expectation maximisation
LIKELY = 8  # languages that are compared by the large models
# And these, which the small models pass over in short captions: for them "a red shirt" is Danish or Albanian.
WIDESPREAD = ("en", "de", "es", "fr")
SURE = 0.8  # a mean probability of the captions' languages; below it these are languages that cannot be told apart
LEAST = 0.05  # a share of a column's captions: languages with less are taken for mistakes


class Guess:
    """The guessed languages of a column of captions; a call returns the language of a caption.

    Attributes:
      shares: {BCP 47 tag: estimated share of the captions, 0 to 1}, the largest first.
      certainty: the mean probability, among these languages, of the language that a caption is assigned to.
      languages: {caption: BCP 47 tag} of the captions whose languages are guessed so far.
    """

    certainty = 1.0

    def __init__(self, texts: Sequence[str], earlier: Iterable[Mapping] = ()):
        """Estimates the languages of texts, and announces it, because loading lingua's models takes long.

        Args:
          texts: the captions of the column.
          earlier: `to_json()` of earlier guesses. A guess that knows all captions is taken over, which spares lingua's
            models: 190 MB and 1.4 processor seconds.

        Raises:
          UserError: lingua is not installed.
        """
        sample = texts[:: max(1, len(texts) // GUESSED_FROM)]
        self.languages: dict[str, str] = {}
        for guess in earlier:
            if set(sample) <= guess["languages"].keys():
                self.shares = guess["shares"]
                self.certainty = guess["certainty"]
                self._scripts = set(guess["scripts"])
                self.languages.update(guess["languages"])
                return
        announce("Guessing the languages of captions …")
        self._estimate(sample)
        for text in sample:
            self(text)  # which keeps the language

    def to_json(self) -> dict[str, object]:
        """Returns the guess as JSON values: {"shares", "certainty", "scripts", "languages"}."""
        return {
            "shares": self.shares,
            "certainty": self.certainty,
            "scripts": sorted(self._scripts),
            "languages": self.languages,
        }

    def _estimate(self, sample: Sequence[str]) -> None:
        """Sets shares, scripts, certainty: small models guess a sample's likely languages, then large ones compare."""
        rough_probabilities = _probabilities(_detector(()), sample)  # by the small models
        ranked = list(_shares(rough_probabilities, least=0.0))
        likely = [tag for tag in ranked if tag in ranked[:LIKELY] or tag in WIDESPREAD]
        self.shares = dict.fromkeys(likely, 1.0)
        self._scripts = set()
        if len(likely) < 2:
            return
        probabilities = _probabilities(_detector(likely), sample)  # by the large models
        self.shares = _shares(probabilities)
        certainties = []
        for text, probability_of in zip(sample, probabilities):
            joint = [share * probability_of.get(tag, 0.0) for tag, share in self.shares.items()]
            if any(joint):  # the caption is in a language of the column
                self._scripts.add(_script(text))
                certainties.append(max(joint) / sum(joint))
        if certainties:
            self.certainty = sum(certainties) / len(certainties)

    def __call__(self, text: str) -> str:
        """Returns the BCP 47 tag of a caption's likeliest language, "und" if the column has no language; keeps it."""
        if text not in self.languages:
            self.languages[text] = self._likeliest(text)
        return self.languages[text]

    @functools.cached_property
    def _own_detector(self):
        """lingua's detector of the column's languages."""
        return _detector(tuple(self.shares))

    def _likeliest(self, text: str) -> str:
        """Returns the likeliest language of a caption among the column's languages.

        For a caption in a script that no language of the column has, it is the likeliest of all languages.
        """
        script = _script(text)
        if script and self._scripts and script not in self._scripts:
            (probabilities,) = _probabilities(_detector(()), [text])
            return max(probabilities, key=probabilities.get)
        if len(self.shares) < 2:
            return max(self.shares, default="und")  # the only language, if there is any
        (probabilities,) = _probabilities(self._own_detector, [text])
        joint = {tag: probabilities.get(tag, 0.0) * share for tag, share in self.shares.items()}
        return max(joint, key=joint.get)

    def describe(self) -> str:
        """Returns the languages and their shares in words: "guessed: de 60%, en 40%"."""
        shares = ", ".join(f"{tag} {share:.0%}" for tag, share in self.shares.items())
        if self.certainty < SURE:
            return f"guessed: {shares}, not sure: --language=de says it"
        return f"guessed: {shares}"


def _script(text: str) -> str:
    """Returns the script that most letters of a text have, such as "LATIN" or "KATAKANA"; "" without letters."""
    if text.isascii():
        return "LATIN" if any(map(str.isalpha, text)) else ""
    scripts = []
    for letter in filter(str.isalpha, text):
        script, _, _ = unicodedata.name(letter, "").partition(" ")
        scripts.append(script)
    return max(dict.fromkeys(scripts), key=scripts.count, default="")  # the first of equally many


def language_named(name: str) -> str:
    """Returns the BCP 47 tag of a language by its English name; "" if lingua is not installed or does not know it."""
    try:
        import lingua
    except ImportError:
        return ""
    for language in lingua.Language.all():
        if language.name.casefold() == name.casefold():
            return _tag(language)
    return ""


def _detector(tags: Sequence[str]):
    """Returns lingua's detector of some languages, or, without tags, a small detector of all languages.

    `tags` are BCP 47. Raises `UserError` if lingua is not installed.
    """
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
    """Returns the BCP 47 tag of one of lingua's languages."""
    return language.iso_code_639_1.name.lower()


def _probabilities(detector, texts: Sequence[str]) -> list[dict[str, float]]:
    """Returns {BCP 47 tag: probability of the language} for each text, with a uniform prior over the languages."""
    probabilities = []
    for text in texts:
        confidences = detector.compute_language_confidence_values(text)
        probabilities.append({_tag(confidence.language): confidence.value for confidence in confidences})
    return probabilities


def _shares(probabilities: Sequence[dict[str, float]], least: float = LEAST) -> dict[str, float]:
    """Returns {BCP 47 tag: share of the texts in the language, 0 to 1}, the largest first, by expectation maximisation.

    Args:
      probabilities: {tag: probability} for each text, as `_probabilities` returns them.
      least: languages with a smaller share, or with the share 0, are left out.
    """
    tags = sorted(set(itertools.chain.from_iterable(probabilities)))
    if not tags:
        return {}
    rows = [[probability_of.get(tag, 0.0) for tag in tags] for probability_of in probabilities]
    likelihoods = np.array(rows)  # [T, L], texts and languages
    shares = np.full(len(tags), 1.0)  # [L]
    for _ in range(ROUNDS):
        joint = likelihoods * shares  # [T, L]
        posterior = joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-300)  # no 0 / 0
        shares = np.mean(posterior, axis=0)
    share_of = {tag: float(share) for tag, share in zip(tags, shares) if share > 0 and share >= least}
    return {tag: share_of[tag] for tag in sorted(share_of, key=share_of.get, reverse=True)}
