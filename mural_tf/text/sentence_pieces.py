"""The pieces of SentencePiece in the graph, as SigLIP, SigLIP 2, XLM-RoBERTa and MetaCLIP 2 take them; CLIP's pairs.

The operation is tensorflow_text's, on a model made of the vocabulary's lines (piece_models.py); it lies in the graph.
Begin and end are added here, by the family's `Layout`: the operation's own flags are settings of a resource that
all signatures share. Pieces that match no text, such as `</s>`, are never found in a text (Hugging Face's
tokenizers find them).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from mural_lite.byte_words import EXPRESSIONS
from mural_lite.errors import UserError
from mural_lite.plain_characters import ESCAPE, plain_characters
from mural_tf.backend import sentencepiece_operations, tf_text, without_noise
from mural_tf.text.byte_words import clip_words, is_end, separated_words, separator
from mural_tf.text.piece_models import SPACE, model_of, parse_lines
from mural_tf.text.tokenizer import Tokenizer
from mural_tf.text.tokens import framed_rows

BYTES_PER_CHARACTER = 16  # bytes read for each character of a row: normalising joins and drops some
_OPERATIONS = sentencepiece_operations()
_NAMES = itertools.count(1)
_SPACES = r"[\s\p{Z}\x{0B}\x{1C}-\x{1F}\x{85}]+"  # Python's \s
_PUNCTUATION = r"[!-/:-@\[-`{-~]"  # Python's string.punctuation


@dataclasses.dataclass(frozen=True)
class Layout:
    """Begin, end and padding of a family's rows: begin, pieces, end, padding up to T. Each is an id or a piece."""

    end: int | str
    pad: int | str
    begin: int | str = -1  # no begin
    is_full: bool = False  # always T ids, and padding is attended to: the mask is 1 everywhere
    fairseq: bool = False  # a model file's ids are moved, see `piece_models.read_lines`
    marks_ends: bool = False  # the last piece of a word is marked, see byte_words.py


LAYOUTS = {
    "siglip": Layout(end=1, pad=1, is_full=True),
    "siglip2": Layout(end=1, pad=0, is_full=True),
    "xlm_roberta": Layout(begin=0, end=2, pad=1, fairseq=True),  # and MetaCLIP 2
    "clip": Layout(begin="<|startoftext|>", end="<|endoftext|>", pad="<|endoftext|>", marks_ends=True),
}


def layout_of(name: str) -> Layout | None:
    """Returns the layout of this name in `LAYOUTS`, or of three pieces "BEGIN END PAD"; `None` for other names."""
    pieces = name.split(" ")
    if len(pieces) == 3 and all(pieces):
        begin, end, pad = pieces
        return Layout(begin=begin, end=end, pad=pad)
    return LAYOUTS.get(name)


def _lower_unicode(texts: tf.Tensor) -> tf.Tensor:
    return tf.strings.lower(texts, encoding="utf-8")


def _plain(texts: tf.Tensor) -> tf.Tensor:
    """Returns texts, string [B], without `ESCAPE` and with `plain_characters`, as `mural_lite`'s `as_plain`."""
    table = plain_characters()  # {code point: its replacement}
    replaced = sorted(table)
    replacements = tf.constant([table[code_point] for code_point in replaced])
    characters = tf.strings.unicode_decode(tf.strings.regex_replace(texts, ESCAPE, ""), "UTF-8")  # [B, (characters)]
    code_points = characters.flat_values
    rows = tf.minimum(tf.searchsorted(replaced, code_points), len(table) - 1)
    is_replaced = tf.equal(tf.gather(replaced, rows), code_points)
    unchanged = tf.strings.unicode_encode(code_points[:, tf.newaxis], "UTF-8")
    plain = tf.where(is_replaced, tf.gather(replacements, rows), unchanged)
    return tf.strings.reduce_join(characters.with_values(plain), axis=1)


CLEANING: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "lower_ascii": tf.strings.lower,  # only A to Z: big_vision
    "lower_unicode": _lower_unicode,  # Python's: a sigma that ends a word is a final one
    # Each character by itself, as Hugging Face's tokenizers: only sigma depends on its neighbours.
    "lower_characters": lambda texts: _lower_unicode(tf.strings.regex_replace(texts, "Σ", "σ")),
    "spaces_for_underscores": lambda texts: tf.strings.regex_replace(texts, "_", " "),
    "no_punctuation": lambda texts: tf.strings.regex_replace(texts, _PUNCTUATION, ""),
    "single_spaces": lambda texts: tf.strings.regex_replace(tf.strings.regex_replace(texts, _SPACES, " "), "^ | $", ""),
    "plain_characters": _plain,  # as open_clip's ftfy
    "composed": lambda texts: tf_text.normalize_utf8(texts, "NFC"),  # a letter and its accent are one character
    "clip_words": clip_words,  # the last step of layout "clip"
    **{name: functools.partial(separated_words, name=name) for name in EXPRESSIONS},  # a last step, too
}


class PieceModel(tf.saved_model.experimental.TrackableResource):
    """A SentencePiece model in TensorFlow, from a model file's content, as a resource with a name of its own.

    tensorflow_text's class gives no name; the resource is then the eager kernel's, which equal models share and
    `tf.random.set_seed` deletes. It stays until the process ends, as tables do: a loaded model's signatures may outlive
    the object that was loaded.
    """

    def __init__(self, model: bytes):
        super().__init__()
        self._model = model
        self._name = f"sentence_pieces_{next(_NAMES)}"
        _ = self.resource_handle  # creates the resource, by `_create_resource`

    def _create_resource(self) -> tf.Tensor:
        with without_noise():  # it warns if a model has no table of normalisation
            return _OPERATIONS.sentencepiece_op(model=self._model, shared_name=self._name)

    def divide(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of texts, string [B]: int32 [B, (pieces)]."""
        flags = dict(nbest_size=0, alpha=1.0, add_bos=False, add_eos=False, reverse=False, out_type=tf.int32)
        ids, splits = _OPERATIONS.sentencepiece_tokenize_op(self.resource_handle, texts, **flags)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False)


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer whose rows are SentencePiece's ids of a text between the begin and the end of a family's layout.

    Longer texts lose their last pieces, never the end. Any bytes are answered: each byte that is not UTF-8 is read as
    U+FFFD. Only the first `max_bytes` of a very long text are read.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        layout: str,
        cleaning: Sequence[str] = (),
        max_length: int = 64,
        vocabulary_file: str | pathlib.Path = "",
        name: str | pathlib.Path = "The vocabulary",
        **options,
    ):
        """Builds the tokenizer.

        Args:
          vocabulary: the lines that `piece_models.read_lines` returns.
          layout: one of `LAYOUTS`, or begin, end and padding, such as "<bos> <eos> <pad>".
          cleaning: steps of `CLEANING` before a text is divided, in this order.
          max_length: T, ids in a row.
          vocabulary_file: the file of these lines, which a SavedModel carries as an asset; "" for none.
          name: the vocabulary's name in messages.
          **options: `Tokenizer`'s; casing is a step of `cleaning`.

        Raises:
          UserError: an unknown layout or step, `lower_case` or `strip_accents`, lines that are no such vocabulary or
            lack a piece of the layout, or `max_length` below 3.
        """
        row_layout = layout_of(layout)
        if row_layout is None:
            raise UserError(
                f"vocabulary.layout={layout!r}: sentence pieces need one of {', '.join(LAYOUTS)}, or the three pieces "
                "begin, end and padding."
            )
        _check_cleaning(cleaning, options)
        if max_length < 3:
            raise UserError(f"max_length={max_length} leaves no room for text between begin and end.")
        self.cleaning = tuple(cleaning)
        pieces, settings = parse_lines(vocabulary, name)
        # Tuples: of a list TensorFlow would follow each entry, which takes seconds.
        self._pieces, _, types = zip(*pieces)
        self.layout = _with_ids(row_layout, self._pieces)
        if len(pieces) <= max(self.layout.begin, self.layout.end, self.layout.pad):
            raise UserError(f"{name} has {len(pieces)} pieces, too few for vocabulary.layout={layout}.")
        self._model = model_of(pieces, settings)
        self._separator = -1  # the id of the character between words; -1: words have no such character
        if not set(EXPRESSIONS).isdisjoint(cleaning):
            self._separator = self._pieces.index(separator())
        no_text = ("unknown", "control", "unused")  # types of pieces that match no text
        self._special = tuple(number for number, piece_type in enumerate(types) if piece_type in no_text)
        marks_word = is_end if self.layout.marks_ends else _starts_word
        self._marks_word = tf.constant([marks_word(piece) for piece in self._pieces])
        self.max_bytes = BYTES_PER_CHARACTER * max_length * (max(map(len, self._pieces)) + 1)  # a piece and a space
        super().__init__(vocabulary, unknown=types.index("unknown"), max_length=max_length, **options)
        if vocabulary_file:
            self.vocabulary_asset = tf.saved_model.Asset(str(vocabulary_file))

    def _new_table(self, vocabulary_file: str | pathlib.Path) -> PieceModel:
        return PieceModel(self._model)

    def _use(self, table: PieceModel) -> None:
        self._table = table

    @property
    def special_ids(self) -> list[int]:
        """Ids of the pieces that match no text, the layout's and the unknown one included."""
        return sorted({*self._special, self.layout.end, self.layout.pad, *self._begin})

    @property
    def _begin(self) -> list[int]:
        """The ids that a row begins with: [begin], or [] for a layout without begin."""
        return [self.layout.begin] if self.layout.begin >= 0 else []

    @property
    def mask_id(self) -> int:
        """Id of `<mask>`; raises `UserError` if the vocabulary lacks it."""
        if "<mask>" not in self._pieces:
            raise UserError("The vocabulary lacks <mask>, which the cloze task needs: set method.cloze_weight=0.")
        return self._pieces.index("<mask>")

    @property
    def room(self) -> int:
        """Pieces of text that fit into a row."""
        return self.max_length - len(self._begin) - 1

    def for_lite(self) -> tuple[dict, bytes]:
        """Returns lite.json's settings and the SentencePiece model, see `Tokenizer.for_lite`."""
        layout = self.layout
        settings = dict(kind="sentence_pieces", begin=self._begin, end=[layout.end])
        settings |= dict(pad=layout.pad, is_full=layout.is_full, max_bytes=self.max_bytes, separator=self._separator)
        return settings, self._model

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of whole texts, string [B]: int32 [B, (words), (pieces)].

        A word begins with its space or, with a layout that `marks_ends`, ends with its mark.
        """
        ids = self._divide(tf.convert_to_tensor(texts, tf.string))  # [B, (pieces)]
        marks_word = tf.gather(self._marks_word, ids.flat_values)  # [all pieces]: begins a word, or ends it
        # The piece after an end begins a word. The last piece's mark comes to the first piece, which begins one anyway.
        begins_word = tf.roll(marks_word, shift=1, axis=0) if self.layout.marks_ends else marks_word
        # A text's first piece always begins a word.
        first_pieces = tf.boolean_mask(ids.row_starts(), ids.row_lengths() > 0)
        marks = tf.ones_like(first_pieces, tf.bool)
        begins_word |= tf.scatter_nd(first_pieces[:, None], marks, tf.shape(begins_word, tf.int64))
        words = tf.RaggedTensor.from_row_starts(ids.flat_values, tf.where(begins_word)[:, 0])
        text_of_word = tf.boolean_mask(ids.value_rowids(), begins_word)
        return tf.RaggedTensor.from_value_rowids(words, text_of_word, ids.nrows())

    def _row_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return tf.expand_dims(self._divide(tf.strings.substr(texts, 0, self.max_bytes)), 1)

    def _divide(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of texts, string [B], after `cleaning`: int32 [B, (pieces)], without separators."""
        if self.cleaning:  # bytes that are not UTF-8 become U+FFFD; without steps the model does it
            texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        for step in self.cleaning:
            texts = CLEANING[step](texts)
        ids = self._table.divide(texts)
        if self._separator >= 0:
            ids = tf.ragged.boolean_mask(ids, ids != self._separator)
        return ids

    def pack(self, ids: tf.RaggedTensor, length: int | tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns rows with begin, end and padding, as `Tokenizer.pack`; `input_type_ids` is 0.

        With a layout that `is_full` all rows have T ids, and `input_mask` is 1 everywhere.
        """
        if length is None and self.layout.is_full:
            length = self.max_length
        longest = self.max_length if length is None else length
        room = longest - len(self._begin) - 1  # without begin and end
        tokens = framed_rows(self._begin, ids[:, :room], self.layout.end, self.layout.pad, length)
        if self.layout.is_full:
            tokens["input_mask"] = tf.ones_like(tokens["input_mask"])
        return tokens


def _check_cleaning(cleaning: Sequence[str], options: dict) -> None:
    """Raises `UserError` for an unknown step of cleaning, or options for casing: casing is such a step here."""
    lower_case = options.get("lower_case", False)
    strip_accents = options.get("strip_accents", False)
    unknown_steps = [step for step in cleaning if step not in CLEANING]
    if unknown_steps or lower_case or strip_accents:
        raise UserError(
            f"vocabulary.cleaning={tuple(cleaning)}, lower_case={lower_case}, strip_accents={strip_accents}: sentence "
            f"pieces take only cleaning, of {', '.join(CLEANING)}."
        )


def _starts_word(piece: str) -> bool:
    return piece.startswith(SPACE)


def _with_ids(layout: Layout, pieces: Sequence[str]) -> Layout:
    """Returns a layout with ids in place of pieces; raises `UserError` if the vocabulary lacks a piece."""
    layout_pieces = {field: piece for field, piece in vars(layout).items() if isinstance(piece, str)}
    missing = sorted(set(layout_pieces.values()) - set(pieces))
    if missing:
        raise UserError(f"The vocabulary lacks {' and '.join(missing)}, which every row of this layout holds.")
    ids = {field: pieces.index(piece) for field, piece in layout_pieces.items()}
    return dataclasses.replace(layout, **ids)
