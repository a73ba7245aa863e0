"""The base of all tokenizers: strings in, BERT's three integer tensors out, as a part of the graph."""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.text.vocabulary_file import save_vocabulary

PADDINGS = ("max_length", "longest")


class Tokenizer(tf.Module):
    """`tokenizer(texts)` returns {"input_word_ids", "input_mask", "input_type_ids"}, each int32 [B, T].

    A derived class implements `tokenize`, `pack` and `for_lite`, and, where that saves time, `_row_ids`.
    """

    # A module looks for variables in all that it holds, many times for an export: not in 250,000 pieces each time.
    _TF_MODULE_IGNORED_PROPERTIES = frozenset({"_vocabulary", "_pieces", *tf.Module._TF_MODULE_IGNORED_PROPERTIES})
    takes_languages = False  # whether texts may begin with a tag, see language_words.py

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        unknown: int,
        max_length: int = 64,
        lower_case: bool = False,
        strip_accents: bool = False,
        vocabulary_file: str | pathlib.Path = "",
        prompt: str = "",
    ):
        """Builds the parts that derived classes share.

        Args:
          vocabulary: the entries, pieces or words; an entry's index is its id.
          unknown: the id of every text that is not an entry; -1 if there is no such entry.
          max_length: T, entries in a row.
          lower_case, strip_accents: as in `clean_text`, and as when the vocabulary was built.
          vocabulary_file: a file that holds the same entries. The graph then reads the file, and a SavedModel carries
            it as an asset instead of as constants.
          prompt: put before every text, such as "query: "; "" for none.
        """
        super().__init__()
        self._vocabulary = tuple(vocabulary)
        self.max_length = max_length
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self.prompt = prompt
        self._unknown_entry = unknown
        self._use(self._new_table(vocabulary_file))

    def _new_table(self, vocabulary_file: str | pathlib.Path) -> tf.lookup.StaticHashTable:
        """Returns a new table of the entries on the device in scope; `vocabulary_file` is as in `__init__`."""
        return _lookup_table(self._vocabulary, self._unknown_entry, vocabulary_file)

    def _use(self, table: tf.lookup.StaticHashTable) -> None:
        """Sets the table; a derived class also builds here, anew for every table, the parts that depend on it."""
        self._table = table

    def on_device_in_scope(self) -> Tokenizer:
        """Returns this tokenizer, or a copy with a new table if another process has the device in scope."""
        table_device = tf.DeviceSpec.from_string(self._table.resource_handle.device)
        scope_device = tf.DeviceSpec.from_string(tf.constant(0).device)
        if (table_device.job, table_device.task) == (scope_device.job, scope_device.task):
            return self
        other = copy.copy(self)
        other._use(other._new_table(""))
        return other

    def with_prompt(self, prompt: str) -> Tokenizer:
        """Returns a tokenizer like this one that puts another prompt before texts, "" for none."""
        other = copy.copy(self)
        other.prompt = prompt
        return other

    def prompted(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns texts, string [B], with the prompt before each: string [B]."""
        texts = tf.convert_to_tensor(texts, tf.string)
        if self.prompt:
            texts = tf.strings.join([self.prompt, texts])
        return texts

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the vocabulary file, without casing and length; raises `UserError` if that fails."""
        save_vocabulary(self._vocabulary, path)

    @property
    def vocabulary(self) -> list[str]:
        """The entries in the order of their ids."""
        return list(self._vocabulary)

    @property
    def vocabulary_size(self) -> int:
        """Number of entries, reserved entries included."""
        return len(self._vocabulary)

    @property
    def unknown_id(self) -> int:
        """Id of the entry for unknown words, -1 if there is no such entry."""
        return self._unknown_entry

    @property
    def room(self) -> int:
        """Entries of text that fit into a row, between begin and end."""
        return self.max_length - 2

    def __call__(self, texts: tf.Tensor, pad: str = "max_length") -> dict[str, tf.Tensor]:
        """Returns the rows of a batch of texts, as a text tower takes them.

        Args:
          texts: string [B]; the prompt is put before each.
          pad: "max_length": T is `max_length`, a static shape as TPUs and serving need; "longest": T is the longest
            row of this batch, which saves work on a CPU.

        Returns:
          {name: int32 [B, T]}: "input_word_ids"; "input_mask", 1 on tokens and 0 on padding; "input_type_ids".

        Raises `UserError` for another `pad`.
        """
        if pad not in PADDINGS:
            raise UserError(f"Unknown padding {pad!r}: expected one of {', '.join(PADDINGS)}.")
        ids = self._row_ids(self.prompted(texts)).merge_dims(1, 2)
        length = self.max_length if pad == "max_length" else None
        return self.pack(ids, length)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 [B, (words), (pieces)]: ids of whole texts, string [B], without prompt and special tokens."""
        raise NotImplementedError

    def pack(self, ids: tf.RaggedTensor, length: int | tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns the rows of ids, int32 [B, (ids)], in the form that a call returns.

        Args:
          ids: the texts' ids, without special tokens and padding.
          length: T; None: the longest row's, up to `max_length`.
        """
        raise NotImplementedError

    def for_lite(self) -> tuple[dict, bytes]:
        """Returns lite.json's settings and the content of its file, from which `litert/pieces.py` has the same ids."""
        raise NotImplementedError

    def _row_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of `tokenize` for texts of any length; ids that do not fit into a row may be left out."""
        return self.tokenize(texts)


def _lookup_table(vocabulary: Sequence[str], unknown: int, file: str | pathlib.Path) -> tf.lookup.StaticHashTable:
    """Returns the table from an entry, string, to its id, int64, or `unknown`; with `file` the graph reads the file."""
    if file:
        entries = tf.lookup.TextFileInitializer(
            str(file),
            key_dtype=tf.string,
            key_index=tf.lookup.TextFileIndex.WHOLE_LINE,
            value_dtype=tf.int64,
            value_index=tf.lookup.TextFileIndex.LINE_NUMBER,
            vocab_size=len(vocabulary),
        )
    else:
        ids = tf.range(len(vocabulary), dtype=tf.int64)
        entries = tf.lookup.KeyValueTensorInitializer(tf.constant(vocabulary, tf.string), ids)
    return tf.lookup.StaticHashTable(entries, unknown)
