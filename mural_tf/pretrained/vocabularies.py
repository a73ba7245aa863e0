"""The word pieces and the casing that belong to a BERT, as Hugging Face and Google store them beside the weights."""

from __future__ import annotations

import pathlib

from mural_tf.config import ConfigurationError
from mural_tf.pretrained.weight_files import read_json
from mural_tf.text.vocabulary import check_vocabulary, load_vocabulary

VOCABULARY = "vocab.txt"  # one piece a line
TOKENIZER = "tokenizer.json"  # Hugging Face's fast tokenizer: pieces and casing in one file


def read_pieces(folder: str | pathlib.Path) -> list[str]:
    """Returns the pieces by id; raises `ConfigurationError` if no file holds a word-piece vocabulary."""
    folder = pathlib.Path(folder)
    if (folder / VOCABULARY).is_file():
        return load_vocabulary(folder / VOCABULARY)
    if not (folder / TOKENIZER).is_file():
        raise ConfigurationError(f"{folder} has neither {VOCABULARY} nor {TOKENIZER}: the weights need word pieces.")
    model = read_json(folder / TOKENIZER).get("model", {})
    if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
        raise ConfigurationError(f"{folder / TOKENIZER} is no word-piece tokenizer: its type is {model.get('type')!r}.")
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    if sorted(model["vocab"].values()) != list(range(len(pieces))):
        raise ConfigurationError(f"{folder / TOKENIZER}: the ids of its pieces are not 0 to {len(pieces) - 1}.")
    check_vocabulary(pieces, str(folder / TOKENIZER))
    return pieces


def read_casing(folder: str | pathlib.Path, pieces: list[str]) -> dict[str, bool]:
    """Returns {"lower_case", "strip_accents"}, from the tokenizer's files or, where there are none, from the pieces.

    BERT strips accents when it lowers case, unless it is told otherwise. Pieces without a single capital letter are
    those of an uncased BERT.
    """
    folder = pathlib.Path(folder)
    if (folder / TOKENIZER).is_file():
        normalizer = read_json(folder / TOKENIZER).get("normalizer") or {}
        lower, strip = bool(normalizer.get("lowercase", False)), normalizer.get("strip_accents")
    elif (folder / "tokenizer_config.json").is_file():
        values = read_json(folder / "tokenizer_config.json")
        lower, strip = bool(values.get("do_lower_case", True)), values.get("strip_accents")
    else:
        lower = not any("A" <= letter <= "Z" for piece in pieces if piece[0] != "[" for letter in piece)
        strip = None
    return {"lower_case": lower, "strip_accents": lower if strip is None else bool(strip)}
