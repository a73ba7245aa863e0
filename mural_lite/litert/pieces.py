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
    """Returns the tokenizer of a `lite/` folder.

    Args:
      folder: holds the vocabulary.
      config: the model's configuration.
      settings: the object "text" of lite.json.

    Raises `UserError` if the vocabulary is missing or damaged, or needs the package sentencepiece, which is missing.
    """
    classes = {"word_pieces": WordPieces, "words": Words, "sentence_pieces": SentencePieces, "byte_pair": BytePairs}
    kind = settings.get("kind")
    if kind not in classes:
        raise UserError(
            f"{folder / 'lite.json'}: the kind of its texts is {kind!r}, expected one of {', '.join(classes)}."
        )
    file_name = VOCABULARY if kind in IN_LINES else MODEL
    content = _read_vocabulary(folder / file_name, settings.get("sha256"))
    pieces = classes[kind](content, config, settings)
    if isinstance(pieces, SentencePieces) and (folder / PLACES).is_file():
        pieces.few = FewPieces(content, folder / PLACES, _processor())
    return pieces


def _read_vocabulary(path: pathlib.Path, expected_digest: object) -> bytes:
    """Returns a vocabulary file's bytes; raises `UserError` for a file that is missing or has another SHA-256."""
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
    """A tokenizer: `rows(texts)` gives the `Row` of every text, bytes in UTF-8; at most `max_length` ids each.

    Attributes:
      pad: the id of padding.
      room: how many ids of a text fit.
      is_full: whether the model wants rows of `max_length`, and attends to padding.
    """

    is_full = False

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        self.max_length = int(config.text_tower.max_length)
        self.pad = int(settings["pad"])
        self._begin = settings["begin"]  # ids before a text
        self._end = settings["end"]  # and after it
        self._lower_case = config.vocabulary.lower_case
        self._strip_accents = config.vocabulary.strip_accents
        self._whole_chinese = bool(config.vocabulary.cleaning)
        self._longest_bytes = int(settings["max_bytes"])
        self.room = self.max_length - len(self._begin) - len(self._end)

    @property
    def unknown(self) -> int | None:
        """The id of unknown pieces; `None`: every text is known."""
        return None

    def ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        """Returns the list of all ids of each text in UTF-8, also if they are more than fit into a row."""
        raise NotImplementedError

    def rows(self, texts: Sequence[bytes]) -> list[Row]:
        """Returns the `Row` of each text in UTF-8, with its first `room` ids."""
        return [([*self._begin, *ids[: self.room], *self._end], 0) for ids in self.ids(texts)]

    def _clean(self, text: str) -> str:
        return clean_text(text, self._lower_case, self._strip_accents)

    def _words(self, cleaned: str) -> list[str]:
        """Returns the words of a cleaned text as `text/words.py` divides them."""
        spaced = cleaned.translate(_spaced(self._whole_chinese))
        return [word for word in spaced.split(" ") if word]


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

    def ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        return [self._ids_of(text) for text in texts]

    def _ids_of(self, text: bytes) -> list[int]:
        """Returns the ids of the text's start that can fill a row, cut as by `WordPieceTokenizer._row_ids`."""
        cleaned = self._clean(text[: self._longest_bytes].decode("utf-8", "replace"))
        if len(text) > self._longest_bytes:
            cleaned = cleaned.removesuffix("\ufffd")  # a character that was cut
        ids: list[int] = []
        for word in self._words(cleaned[: self._max_characters]):
            ids += self.divide_word(word)
        return ids

    def _divide_word(self, word: str) -> list[int]:
        """Returns the ids of a word's pieces."""
        ids: list[int] = []
        begin = 0
        while begin < len(word):
            piece_id, begin = self._longest_piece(word, begin)
            ids.append(piece_id)
        return ids

    def _longest_piece(self, word: str, begin: int) -> tuple[int, int]:
        """Returns (id, end) of the longest entry that fits from `begin` on, or of one unknown character there."""
        prefix = "##" if begin else ""  # of entries that go on within a word
        for end in range(min(len(word), begin + self._longest), begin, -1):
            piece_id = self._ids.get(prefix + word[begin:end])
            if piece_id is not None:
                return piece_id, end
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
        """Returns the list of all ids of each text in UTF-8; only many or long texts load the whole vocabulary."""
        are_few = len(texts) <= FEW and all(len(text) <= SHORT for text in texts)
        if self.few is not None and are_few:
            encode = self.few.encode
        else:
            encode = self._all_pieces().EncodeAsIds
        return [self._without_separators(encode(self._cleaned(text))) for text in texts]

    def _cleaned(self, text: bytes) -> bytes:
        """Returns the start of a text that can fill a row, after the vocabulary's steps of cleaning."""
        text = text[: self._longest_bytes]
        if not self._steps:
            return text
        cleaned = text.decode("utf-8", "replace")
        for step in self._steps:
            cleaned = step(cleaned)
        return cleaned.encode("utf-8")

    def _without_separators(self, ids: list[int]) -> list[int]:
        """Returns ids without the ids of the separators between words of bytes."""
        return [piece_id for piece_id in ids if piece_id != self._separator]


class BytePairs(WordPieces):
    """Byte-level pairs: every word with its space as bytes, which SentencePiece's library joins."""

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        Pieces.__init__(self, content, config, settings)  # `WordPieces` would read entries in lines
        self._max_characters = int(settings["max_characters"])
        self._characters = settings["byte_characters"]
        self._longest_word = int(settings["longest_word"])
        self._encode = _processor()(model_proto=content).EncodeAsIds
        self.divide_word = functools.lru_cache(maxsize=2**16)(self._divide_word)

    @property
    def unknown(self) -> int | None:
        return None

    def _divide_word(self, word: str) -> list[int]:
        """Returns the ids of a space and a word; a long word is divided in parts of `longest_word` bytes before."""
        characters = "".join(self._characters[byte] for byte in b" " + word.encode("utf-8"))  # one per byte
        ids: list[int] = []
        for begin in range(0, len(characters), self._longest_word):
            ids += self._encode(characters[begin : begin + self._longest_word].encode("utf-8"))
        return ids


class Words(Pieces):
    """Words of the language that a text's tag names, or of the likeliest one, see `text/language_words.py`."""

    def __init__(self, content: bytes, config: ConfigDict, settings: Mapping):
        super().__init__(content, config, settings)
        entries = _entries(content)
        self._ids = {entry: number for number, entry in enumerate(entries)}
        self._languages = settings["languages"]
        self._starts = settings["starts"]  # the first id of each language's words, the most frequent word first
        ends = [*self._starts[1:], len(entries)]
        sizes = [end - start for start, end in zip(self._starts, ends)]
        self._rarest = math.log(10.0 * max(sizes))  # for words that a language lacks, far behind its last

    def rows(self, texts: Sequence[bytes]) -> list[Row]:
        """Returns (ids, number of the language) of each text in UTF-8; a text without words is one unknown word."""
        return [self._row(text[: self._longest_bytes].decode("utf-8", "replace")) for text in texts]

    def _row(self, text: str) -> Row:
        """Returns (ids, number of the language) of a text, which may begin with the language's tag: "<de> "."""
        tag = re.match(r"<([A-Za-z0-9-]+)> ", text)
        if tag:
            text = text[tag.end() :]
        words = self._words(self._clean(text))
        if tag and tag[1] in self._languages:
            language = self._languages.index(tag[1])
        else:
            language = self._likeliest(words)
        name = self._languages[language]
        unknown = 1 + language  # after padding, 0, each language has an id for unknown words
        ids = [self._ids.get(f"{name}\t{word}", unknown) for word in words]
        return ids[: self.max_length] or [unknown], language

    def _likeliest(self, words: Sequence[str]) -> int:
        """Returns the number of the likeliest language of words, whose frequency in a language is about 1 / rank."""
        scores = []  # logarithms
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
    """Returns a text with single spaces, also for control characters; in lower case and without accents if so asked."""
    if lower_case:
        text = lower(text)
    if strip_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    return re.sub(" +", " ", text.translate(_SPACES)).strip(" ")


class _Spaces(dict):
    """A table for `str.translate`: joiners vanish, and every space and control character becomes a space."""

    def __missing__(self, code: int) -> str | int | None:
        """Returns the replacement of a character that was not asked for before, and keeps it."""
        self[code] = code
        if code in JOINERS:
            self[code] = None
        elif unicodedata.category(chr(code)) in SPACE_CATEGORIES:
            self[code] = " "
        return self[code]


class _Spaced(dict):
    """A table for `str.translate`: punctuation becomes words, and so do Chinese characters unless `whole_chinese`."""

    def __init__(self, whole_chinese: bool):
        super().__init__()
        self._whole_chinese = whole_chinese

    def __missing__(self, code: int) -> str | int:
        """Returns the replacement of a character that was not asked for before, and keeps it."""
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
