"""The vocabularies that come with weights: word pieces with their casing, and the pieces of SentencePiece."""

from __future__ import annotations

import json
import pathlib
import re

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.pretrained.tokenizer_files import (
    TOKENIZER,
    warn_of_added_tokens,
    word_settings,
    xlm_roberta_cleaning,
)
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors
from mural_tf.text import piece_models
from mural_tf.text.vocabulary_file import check_vocabulary, load_vocabulary

VOCABULARY = "vocab.txt"  # one piece per line
TOKEN_TABLE = r"(.*\.)?embeddings\.(word|tok)_embeddings\.weight"
SENTENCE_PIECES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", TOKENIZER)


def read_pieces(folder: str | pathlib.Path) -> list[str]:
    """Returns the word pieces by id in a folder's vocab.txt or tokenizer.json.

    Raises `UserError` if both are missing, damaged or hold pieces of another kind.
    """
    folder = pathlib.Path(folder)
    if (folder / VOCABULARY).is_file():
        return load_vocabulary(folder / VOCABULARY)
    model = json_field(read_json(folder / TOKENIZER), "model", dict, folder / TOKENIZER)
    if model.get("unk_token", "[UNK]") != "[UNK]":
        raise UserError(f"{folder / TOKENIZER}: unk_token is {model['unk_token']!r}, and only '[UNK]' is supported.")
    if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix", "##") != "##":
        raise UserError(f"{folder / TOKENIZER} is not a word-piece tokenizer: its type is {model.get('type')!r}.")
    ids = json_field(model, "vocab", dict[str, int], folder / TOKENIZER)
    pieces = sorted(ids, key=ids.get)
    if sorted(ids.values()) != list(range(len(pieces))):
        raise UserError(f"{folder / TOKENIZER}: the ids of its pieces are not 0 to {len(pieces) - 1}.")
    check_vocabulary(pieces, str(folder / TOKENIZER))
    return pieces


def read_vocabulary(folder: str | pathlib.Path, config: ConfigDict, rows: int = 0) -> list[str]:
    """Returns the lines of a BERT's or XLM-RoBERTa's vocabulary by id, and sets `config.vocabulary` to how it is used.

    Args:
      folder: a folder with `VOCABULARY` or one of `SENTENCE_PIECES`.
      config: the configuration that is changed.
      rows: how many rows the tower's table of tokens has, 0 if it is not known. Rows beyond the pieces get pieces that
        are never used. For word pieces, a warning is logged for added tokens that are not among them.

    Raises:
      UserError: the vocabulary is missing, of another kind, or has pieces for texts beyond the rows.
    """
    folder = pathlib.Path(folder)
    if (folder / VOCABULARY).is_file() or _piece_type(folder) == "WordPiece":
        pieces = read_pieces(folder)
        if rows and len(pieces) > rows:
            raise UserError(_other_size(folder, len(pieces), rows))
        pieces += map(unused_piece, range(len(pieces), rows))
        warn_of_added_tokens(folder, pieces)
        settings = word_settings(folder, pieces)
        config.vocabulary.update(builder="tokenizers", layout="", size=len(pieces), file="", sha256="", **settings)
        return pieces
    cleaning = xlm_roberta_cleaning(folder)
    lines, _ = read_sentence_pieces(find_sentence_pieces(folder), rows, fairseq=True)
    use_sentence_pieces(config, lines, "xlm_roberta", cleaning)
    return lines


def vocabulary_of(folder: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns `read_vocabulary` of a folder of Hugging Face, for as many rows as its weights have."""
    return read_vocabulary(folder, config, token_rows(open_safetensors(folder)))


def unused_piece(row: int) -> str:
    """Returns a piece that no text reaches, for a row of the table of tokens: no word holds a space."""
    return f"<row {row}>"


def _other_size(path: str | pathlib.Path, pieces: int, rows: int) -> str:
    """Returns the error message for a vocabulary at `path` that has more pieces than the table of tokens has rows."""
    return f"{path} has {pieces} pieces and the weights {rows} rows: it is not this model's."


def token_rows(weights: WeightFile) -> int:
    """Returns how many rows the table of tokens in a file of weights has, 0 if it is missing."""
    for name, shape in weights.shapes.items():
        if re.fullmatch(TOKEN_TABLE, name) and shape:
            return shape[0]
    return 0


def _piece_type(folder: pathlib.Path) -> str:
    """Returns the type of the pieces in a folder's tokenizer.json, for example "WordPiece"; "" without that file."""
    path = folder / TOKENIZER
    if not path.is_file():
        return ""
    return str(json_field(read_json(path), "model", dict, path).get("type"))


def find_sentence_pieces(folder: pathlib.Path) -> pathlib.Path:
    """Returns the first of a folder's files `SENTENCE_PIECES`; raises `UserError` if all are missing."""
    files = [folder / name for name in SENTENCE_PIECES if (folder / name).is_file()]
    if not files:
        raise UserError(
            f"{folder} has no vocabulary: expected {VOCABULARY} of word pieces, or one of {', '.join(SENTENCE_PIECES)}."
        )
    return files[0]


def read_sentence_pieces(path: str | pathlib.Path, rows: int = 0, fairseq: bool = False) -> tuple[list[str], str]:
    """Returns (the lines of a SentencePiece vocabulary, its kind, "unigram" or "bpe").

    Args:
      path: a file of `SENTENCE_PIECES`.
      rows: as in `fit_rows`.
      fairseq: whether ids are in fairseq's order, as XLM-RoBERTa has them.

    Raises:
      UserError: the file is damaged, or a piece beyond the rows matches texts.
    """
    lines = piece_models.read_lines(path, fairseq)
    _, settings = piece_models.parse_lines(lines, path)
    return fit_rows(lines, rows, path), settings["model"]


def fit_rows(lines: list[str], rows: int, path: str | pathlib.Path) -> list[str]:
    """Returns a line of SentencePiece's vocabulary for each row of a tower's table of tokens; for 0 rows, all lines.

    Pieces beyond the rows that match no text are left out, and rows beyond the pieces get pieces that are never used.
    Raises `UserError`, which names `path`, if a piece beyond the rows matches texts.
    """
    pieces, _ = piece_models.parse_lines(lines, path)
    if rows and any(piece_type in ("normal", "byte", "unknown") for _, _, piece_type in pieces[rows:]):
        raise UserError(_other_size(path, len(lines), rows))
    if not rows:
        return lines
    unused = [json.dumps([unused_piece(row), 0.0, "unused"]) for row in range(len(lines), rows)]
    return lines[:rows] + unused


def use_sentence_pieces(config: ConfigDict, lines: list[str], layout: str, cleaning: tuple[str, ...]) -> None:
    """Sets `config.vocabulary` to SentencePiece's pieces, `lines`; `layout` and `cleaning` are fields of it."""
    config.vocabulary.update(
        builder="sentence_pieces",
        layout=layout,
        cleaning=cleaning,
        size=len(lines),
        file="",
        sha256="",
        lower_case=False,
        strip_accents=False,
    )
