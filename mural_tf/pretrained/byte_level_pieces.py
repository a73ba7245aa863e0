"""Byte-level byte pairs in tokenizer.json, of English ModernBERTs and granite-embedding-97m, as a vocabulary's lines.

Texts become words by GPT-2's or GPT-4o's expression, and words are written in bytes (`text/byte_words.py`). Where the
file says `ignore_merges`, a word that is a piece is that piece, even if no pairs lead to it: such a piece is written
between two separators, so that only whole words are it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import tensorflow as tf

from mural_lite.byte_words import EXPRESSIONS, GPT2
from mural_lite.errors import UserError
from mural_lite.files import json_field
from mural_tf.pretrained.keys import FREE, check_keys
from mural_tf.text.byte_words import separator
from mural_tf.text.piece_models import BYTE_PAIR_SETTINGS, as_lines, byte_pair_lines, model_of, parse_lines, steps_of
from mural_tf.text.sentence_pieces import PieceModel

MODEL_KEYS = {
    "type": ("BPE",),
    "vocab": FREE,
    "merges": FREE,
    "unk_token": FREE,  # no text reaches it: every byte has a piece
    "fuse_unk": FREE,
    "ignore_merges": FREE,
    "dropout": (),
    "byte_fallback": (False,),
    "continuing_subword_prefix": ("",),
    "end_of_word_suffix": ("",),
}


def is_byte_level(tokenizer: Mapping) -> bool:
    """Whether the words of a tokenizer.json, its content, are written in bytes."""
    return any(step.get("type") == "ByteLevel" for step in steps_of(tokenizer, "pre_tokenizer"))


def cleaning_of(tokenizer: Mapping, path: pathlib.Path) -> tuple[str, ...]:
    """Returns the steps of `config.vocabulary.cleaning` that a tokenizer.json, the content of `path`, asks for.

    Raises `UserError` for steps that are not supported.
    """
    normalizers = [step.get("type") for step in steps_of(tokenizer, "normalizer")]
    if normalizers not in ([], ["NFC"]):
        raise UserError(f"{path}: its normalizer is {' and '.join(map(str, normalizers))}; expected NFC or none.")
    words = _word_expression(tokenizer, path)
    if normalizers:
        return ("composed", words)
    return (words,)


def _word_expression(tokenizer: Mapping, path: pathlib.Path) -> str:
    """Returns the name in `EXPRESSIONS` of the regular expression that divides texts into words.

    A step before ByteLevel holds the expression; without such a step it is ByteLevel's own, GPT-2's. Arguments and
    errors are as in `cleaning_of`.
    """
    *splits, byte_level = steps_of(tokenizer, "pre_tokenizer")
    keys = {"type": ("ByteLevel",), "add_prefix_space": (False,), "trim_offsets": FREE, "use_regex": FREE}
    check_keys(byte_level, keys, path)
    uses_own_expression = byte_level.get("use_regex", True)
    if not splits and uses_own_expression:
        return GPT2
    patterns = [(step.get("pattern") or {}).get("Regex", "") for step in splits]
    if len(splits) == 1 and not uses_own_expression:
        (split,) = splits
        names = [name for name, expression in EXPRESSIONS.items() if expression == patterns[0]]
        if names and split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert"):
            return names[0]
    raise UserError(
        f"{path}: its pre_tokenizer splits texts by {' and '.join(map(repr, patterns)) or 'nothing'}, which is "
        "not supported: expected GPT-2's expression, or GPT-4o's."
    )


def byte_level_lines(tokenizer: Mapping, path: pathlib.Path) -> list[str]:
    """Returns the lines of the pieces in a tokenizer.json, the content of `path`, for `piece_models.parse_lines`.

    Raises `UserError` for pieces of another kind, or a tokenizer without added tokens.
    """
    model = json_field(tokenizer, "model", dict, path)
    check_keys(model, MODEL_KEYS, path)
    ids = dict(json_field(model, "vocab", dict[str, int], path))
    merges = json_field(model, "merges", list, path)
    types = {}  # {added token: its type}
    for token in json_field(tokenizer, "added_tokens", list[dict], path, []):
        content = str(token.get("content"))
        ids.setdefault(content, int(token.get("id", -1)))  # -1, without an id, is refused below
        types[content] = "control"
    if not types or separator() not in ids:
        raise UserError(f"{path}: expected a piece for each of the 256 bytes, and added tokens.")
    unknown = model.get("unk_token")
    if unknown not in types:
        unknown, *_ = types  # no text reaches it, so that any added token will do
    types[unknown] = "unknown"
    lines = byte_pair_lines(ids, merges, types, str, path)
    if not model.get("ignore_merges"):
        return lines
    rows, _ = parse_lines(lines, path)  # [piece, score, type] each
    pieces = [piece for piece, _, _ in rows]
    piece_model = PieceModel(model_of(rows, BYTE_PAIR_SETTINGS))
    lengths = piece_model.divide(tf.constant(pieces)).row_lengths().numpy()
    for row, piece, length in zip(rows, pieces, lengths):
        if length != 1 and piece not in types:  # its pairs do not lead to it
            row[0] = f"{separator()}{piece}{separator()}"
            row[2] = "user_defined"
    return as_lines(rows, BYTE_PAIR_SETTINGS, path)
