"""The ids of texts, as the graph's tokenizers give them (`mural_tf/text/`), without TensorFlow.

Words and word pieces are divided here, by Python's tables of characters; SentencePiece's pieces and byte pairs by the
package `sentencepiece`, with the model of the graph's operation. `benchmarks/lite_inputs.py` compares ids on 100,000
texts.
"""

from __future__ import annotations

import functools
import hashlib
import math
import pathlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from mural_lite.byte_words import EXPRESSIONS, clip_words, separated_words
from mural_lite.errors import UserError, install_extra
from mural_lite.litert.few_pieces import PLACES, FewPieces
from mural_lite.plain_characters import as_plain

MODEL = "pieces.model"  # the file of the kinds that SentencePiece divides
VOCABULARY = "vocabulary.txt"  # the file of the kinds in `IN_LINES`, an entry per line
IN_LINES = ("word_pieces", "words")
# So many texts, of so many bytes each, are divided without the whole vocabulary of SentencePiece.
FEW = 16
SHORT = 1_000
Row = tuple[list[int], int]  # the ids of a text, begin and end included, and its type: the language of words
SPACE_CATEGORIES = {"Zs", "Zl", "Zp", "Cc", "Cf"}
ASCII_PUNCTUATION = {chr(code) for code in (*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127))}
JOINERS = {0x00AD, 0x200C, 0x200D}
CHINESE = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
           (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))  # fmt: skip


def pieces_of(folder: pathlib.Path, config: ConfigDict, settings: Mapping) -> Pieces:
    """Returns the pieces by which the texts of a `lite/` folder are divided.

    Args:
      folder: holds the vocabulary.
      config: the model's configuration.
      settings: the object "text" of lite.json.

    Raises:
      UserError: the vocabulary is missing or damaged, or needs the package sentencepiece, which is not installed.
    """
    kinds = {"word_pieces": WordPieces, "words": Words, "sentence_pieces": SentencePieces, "byte_pair": BytePairs}
    if settings.get("kind") not in kinds:
        expected = ", ".join(kinds)
        raise UserError(
            f"{folder / 'lite.json'}: the kind of its texts is {settings.get('kind')!r}, expected one of {expected}."
        )
    name = VOCABULARY if settings["kind"] in IN_LINES else MODEL
    content = _read_vocabulary(folder / name, settings.get("sha256"))
    pieces = kinds[settings["kind"]](content, config, settings)
    if isinstance(pieces, SentencePieces) and (folder / PLACES).is_file():
        pieces.few = FewPieces(content, folder / PLACES, _processor())
    return pieces


def _read_vocabulary(path: pathlib.Path, expected_digest: object) -> bytes:
    """Returns the content of a vocabulary; raises `UserError` for a file that is missing or has another SHA-256."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"Cannot read the vocabulary {path}: {error.strerror}.") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected_digest:
        raise UserError(
            f"{path} is not the vocabulary that the model was exported with: its SHA-256 is {digest}, expected "
            f"{expected_digest}. Copy the folder again."
        )
    return content


class Pieces:
    """`rows(texts)` gives the `Row` of every text, bytes in UTF-8; at most `max_length` ids each.

    Attributes:
      pad: the id of padding.
      room: how many ids of a text fit.
      is_full: whether rows are `max_length` long, and padding is attended to.
    """

    is_full = False

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        self.max_length = int(config.text_tower.max_length)
        self.pad = int(settings["pad"])
        self._begin = settings["begin"]  # ids before a text
        self._end = settings["end"]  # and after it
        self._lower = config.vocabulary.lower_case
        self._strips = config.vocabulary.strip_accents
        self._whole_chinese = bool(config.vocabulary.cleaning)
        self._longest_bytes = int(settings["max_bytes"])
        self.room = self.max_length - len(self._begin) - len(self._end)

    @property
    def unknown(self) -> int | None:
        """The id of unknown pieces; `None`: every text is known."""
        return None

    def ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        """Returns all ids of each text, also if they are more than fit."""
        return [self.divide(text) for text in texts]

    def rows(self, texts: Sequence[bytes]) -> list[Row]:
        """Returns the ids and type of each text."""
        return [([*self._begin, *ids[: self.room], *self._end], 0) for ids in self.ids(texts)]

    def divide(self, text: bytes) -> list[int]:
        """Returns the ids of a text, to which `rows` adds ids before and after."""
        raise NotImplementedError

    def words(self, text: str) -> list[str]:
        """Returns the words of a text as `text/words.py` divides them."""
        return clean_text(text, self._lower, self._strips).translate(_spaced(self._whole_chinese)).split(" ")


class WordPieces(Pieces):
    """BERT's word pieces: a word is divided from its start, each time by the longest entry that fits."""

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        super().__init__(content, config, settings)
        entries = _entries(content)
        self._ids = {entry: number for number, entry in enumerate(entries)}
        self._unknown = int(settings["unknown"])
        self._longest = max(map(len, entries))
        self._max_characters = int(settings["max_characters"])
        self.divide_word = functools.lru_cache(maxsize=2**16)(self._divide_word)

    @property
    def unknown(self) -> int | None:
        return self._unknown

    def divide(self, text: bytes) -> list[int]:
        ids: list[int] = []
        for word in self._first_words(text):
            if word:
                ids += self.divide_word(word)
        return ids

    def _first_words(self, text: bytes) -> list[str]:
        """Returns as many words of the text's start as can fill a row, cut as by `WordPieceTokenizer._row_ids`."""
        start = text[: self._longest_bytes].decode("utf-8", "replace")
        cleaned = clean_text(start, self._lower, self._strips)
        if len(text) > self._longest_bytes:
            cleaned = cleaned.removesuffix("\ufffd")  # a character that was cut
        return cleaned[: self._max_characters].translate(_spaced(self._whole_chinese)).split(" ")

    def _divide_word(self, word: str) -> list[int]:
        """Returns the ids of a word's pieces."""
        ids: list[int] = []
        begin = 0
        while begin < len(word):
            number, begin = self._longest_piece(word, begin)
            ids.append(number)
        return ids

    def _longest_piece(self, word: str, begin: int) -> tuple[int, int]:
        """Returns (id, end) of the longest entry that fits at a place of a word, or of one unknown character."""
        prefix = "##" if begin else ""  # of entries that go on within a word
        for end in range(min(len(word), begin + self._longest), begin, -1):
            number = self._ids.get(prefix + word[begin:end])
            if number is not None:
                return number, end
        return self._unknown, begin + 1


class SentencePieces(Pieces):
    """SentencePiece's pieces, by its own library.

    Attributes:
      few: divides a few short texts without the whole vocabulary; `None` if the export has no positions of pieces.
    """

    few: FewPieces | None = None

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        super().__init__(content, config, settings)
        self.is_full = bool(settings["is_full"])
        self._separator = int(settings.get("separator", -1))  # the id between words of bytes; -1: no words of bytes
        self._steps = [CLEANING[step] for step in config.vocabulary.cleaning]
        processor = _processor()
        self._all_pieces = functools.cache(lambda: processor(model_proto=content))

    @property
    def unknown(self) -> int | None:
        if self.few is not None:
            return self.few.unknown
        return self._all_pieces().unk_id()

    def ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        are_few = len(texts) <= FEW and all(len(text) <= SHORT for text in texts)
        if self.few is not None and are_few:
            self._encode = self.few.encode
        else:
            self._encode = self._all_pieces().EncodeAsIds
        return super().ids(texts)

    def divide(self, text: bytes) -> list[int]:
        text = text[: self._longest_bytes]
        if self._steps:
            cleaned = text.decode("utf-8", "replace")
            for step in self._steps:
                cleaned = step(cleaned)
            text = cleaned.encode("utf-8")
        ids = self._encode(text)
        if self._separator >= 0:
            ids = [number for number in ids if number != self._separator]
        return ids


class BytePairs(WordPieces):
    """Byte-level pairs: every word with its space as bytes, which SentencePiece's library joins."""

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        Pieces.__init__(self, content, config, settings)
        self._max_characters = int(settings["max_characters"])
        self._characters = settings["byte_characters"]
        self._longest_word = int(settings["longest_word"])
        self._encode = _processor()(model_proto=content).EncodeAsIds
        self.divide_word = functools.lru_cache(maxsize=2**16)(self._divide_word)

    @property
    def unknown(self) -> int | None:
        return None

    def _divide_word(self, word: str) -> list[int]:
        text = "".join(self._characters[byte] for byte in b" " + word.encode("utf-8"))
        ids: list[int] = []
        for begin in range(0, len(text), self._longest_word):
            ids += self._encode(text[begin : begin + self._longest_word].encode("utf-8"))
        return ids


class Words(Pieces):
    """Words of the language that a text's tag names, or of the likeliest one, see `text/language_words.py`."""

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        super().__init__(content, config, settings)
        entries = _entries(content)
        self._ids = {entry: number for number, entry in enumerate(entries)}
        self._languages = settings["languages"]
        self._starts = settings["starts"]
        ends = [*self._starts[1:], len(entries)]
        sizes = [end - start for start, end in zip(self._starts, ends)]
        self._rarest = math.log(10.0 * max(sizes))  # for words that a language lacks, far behind its last

    def rows(self, texts: Sequence[bytes]) -> list[Row]:
        """Returns the ids and the language of each text; a text without words becomes an unknown word."""
        return [self._row(text[: self._longest_bytes].decode("utf-8", "replace")) for text in texts]

    def _row(self, text: str) -> Row:
        """Returns the ids and the language of a text, which may begin with the language's tag: "<de> "."""
        tag = re.match(r"<([A-Za-z0-9-]+)> ", text)
        if tag:
            text = text[tag.end() :]
        words = [word for word in self.words(text) if word]
        if tag and tag[1] in self._languages:
            language = self._languages.index(tag[1])
        else:
            language = self._likeliest(words)
        name = self._languages[language]
        unknown = 1 + language
        ids = [self._ids.get(f"{name}\t{word}", unknown) for word in words]
        return ids[: self.max_length] or [unknown], language

    def _likeliest(self, words: Sequence[str]) -> int:
        """Returns the number of the language in which the words are most frequent, by their ranks."""
        scores = []
        for language, start in zip(self._languages, self._starts):
            score = 0.0
            for word in words:
                line = self._ids.get(f"{language}\t{word}", -1)
                if line >= start:
                    score -= math.log(line - start + 2.0)
                else:
                    score -= self._rarest
            scores.append(score)
        return scores.index(max(scores))


def _entries(content: bytes) -> list[str]:
    """Returns the entries of a vocabulary, one per line."""
    return content.decode("utf-8").removesuffix("\n").split("\n")


def _processor() -> Callable:
    """Returns the library's class, which makes a processor from a model's bytes, `model_proto`."""
    try:
        import sentencepiece
    except ImportError:
        raise UserError(f"{MODEL} needs the package sentencepiece: {install_extra('lite')}.") from None
    return sentencepiece.SentencePieceProcessor


# Cleaning, as `text/words.py` and `text/sentence_pieces.py` do it in the graph.


def lower(text: str) -> str:
    """Returns a text in Unicode's lower case, up to a null character: there TensorFlow's operation ends."""
    return text.partition("\0")[0].lower()


def clean_text(text: str, lower_case: bool, strip_accents: bool) -> str:
    """Returns a text with single spaces, in the case asked for; control and format characters count as spaces."""
    if lower_case:
        text = lower(text)
    if strip_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    return re.sub(" +", " ", text.translate(_SPACES)).strip(" ")


class _Spaces(dict):
    """For `str.translate`: joiners vanish, and every space and control character becomes a space."""

    def __missing__(self, code: int) -> str | int | None:
        self[code] = code
        if code in JOINERS:
            self[code] = None
        elif unicodedata.category(chr(code)) in SPACE_CATEGORIES:
            self[code] = " "
        return self[code]


class _Spaced(dict):
    """For `str.translate`: punctuation becomes words, and so do Chinese characters unless `whole_chinese`."""

    def __init__(self, whole_chinese: bool):
        super().__init__()
        self._whole_chinese = whole_chinese

    def __missing__(self, code: int) -> str | int:
        character = chr(code)
        is_word = character in ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")
        if not self._whole_chinese and any(first <= code <= last for first, last in CHINESE):
            is_word = True
        self[code] = f" {character} " if is_word else code
        return self[code]


_SPACES = _Spaces()


@functools.cache
def _spaced(whole_chinese: bool) -> _Spaced:
    return _Spaced(whole_chinese)


_WHITE = re.compile("[\t\n\f\r \x0b\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_A_TO_Z = {code: code + 32 for code in range(65, 91)}
CLEANING: dict[str, Callable[[str], str]] = {
    "lower_ascii": lambda text: text.translate(_A_TO_Z),
    "lower_unicode": lower,
    "lower_characters": lambda text: lower(text.replace("Σ", "σ")),
    "spaces_for_underscores": lambda text: text.replace("_", " "),
    "no_punctuation": lambda text: "".join(c for c in text if c not in ASCII_PUNCTUATION),
    "single_spaces": lambda text: re.sub(r"\A | \Z", "", _WHITE.sub(" ", text)),
    "composed": lambda text: unicodedata.normalize("NFC", text),
    "plain_characters": as_plain,
    "clip_words": clip_words,
    **{name: functools.partial(separated_words, name=name) for name in EXPRESSIONS},
}
