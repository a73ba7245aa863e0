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
    """Whether a tokenizer.json's words are written in bytes."""
    return any(step.get("type") == "ByteLevel" for step in steps_of(tokenizer, "pre_tokenizer"))


def cleaning_of(tokenizer: Mapping, path: pathlib.Path) -> tuple[str, ...]:
    """Returns the steps before the pieces; raises `UserError` for steps that are not supported."""
    normalizers = [step.get("type") for step in steps_of(tokenizer, "normalizer")]
    if normalizers not in ([], ["NFC"]):
        raise UserError(f"{path}: its normalizer is {' and '.join(map(str, normalizers))}; expected NFC or none.")
    *splits, last = steps_of(tokenizer, "pre_tokenizer")
    check_keys(
        last, {"type": ("ByteLevel",), "add_prefix_space": (False,), "trim_offsets": FREE, "use_regex": FREE}, path
    )
    by_expression = {expression: name for name, expression in EXPRESSIONS.items()}
    uses_gpt2 = last.get("use_regex", True)
    if not splits and uses_gpt2:
        words = GPT2
    else:
        patterns = [(step.get("pattern") or {}).get("Regex", "") for step in splits]
        words = None
        if len(splits) == 1 and not uses_gpt2:
            (split,) = splits
            if split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert"):
                words = by_expression.get(patterns[0])
        if words is None:
            raise UserError(
                f"{path}: its pre_tokenizer splits texts by {' and '.join(map(repr, patterns)) or 'nothing'}, which is "
                "not supported: expected GPT-2's expression, or GPT-4o's."
            )
    if normalizers:
        return ("composed", words)
    return (words,)


def byte_level_lines(tokenizer: Mapping, path: pathlib.Path) -> list[str]:
    """Returns the lines of the pieces, as `piece_models.parse_lines` takes them; raises `UserError` for others."""
    model = json_field(tokenizer, "model", dict, path)
    check_keys(model, MODEL_KEYS, path)
    ids = dict(json_field(model, "vocab", dict[str, int], path))
    merges = json_field(model, "merges", list, path)
    types = {}
    for token in json_field(tokenizer, "added_tokens", list[dict], path, []):
        content = str(token.get("content"))
        ids.setdefault(content, int(token.get("id", -1)))
        types[content] = "control"
    if not types or separator() not in ids:
        raise UserError(f"{path}: expected a piece for each of the 256 bytes, and added tokens.")
    unknown = model.get("unk_token")
    if unknown not in types:
        unknown = next(iter(types))
    types[unknown] = "unknown"
    lines = byte_pair_lines(ids, merges, types, str, path)
    if not model.get("ignore_merges"):
        return lines
    pieces, _ = parse_lines(lines, path)
    names = [name for name, _, _ in pieces]
    piece_model = PieceModel(model_of(pieces, BYTE_PAIR_SETTINGS))
    lengths = piece_model.divide(tf.constant(names)).row_lengths().numpy()
    for row, name, length in zip(pieces, names, lengths):  # a row is [piece, score, type]
        if length != 1 and name not in types:
            row[0] = f"{separator()}{name}{separator()}"
            row[2] = "user_defined"
    return as_lines(pieces, BYTE_PAIR_SETTINGS, path)
