"""Vocabularies and the in-graph tokenizers that data, evaluation and export share; `build_tokenizer` picks one."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from mural_lite.config import in_sentence_pieces, takes_languages
from mural_lite.errors import UserError
from mural_tf.text import piece_models
from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.language_words import WordTokenizer
from mural_tf.text.sentence_pieces import SentencePieceTokenizer, layout_of
from mural_tf.text.vocabulary_file import check_digest, check_vocabulary, read_lines
from mural_tf.text.word_pieces import WordPieceTokenizer


def build_tokenizer(
    config: ConfigDict, vocabulary_file: str | pathlib.Path, as_asset: bool = False
) -> WordPieceTokenizer | WordTokenizer | SentencePieceTokenizer:
    """Builds the tokenizer that a whole configuration describes, on a vocabulary file.

    With `as_asset` the graph reads the file, and a SavedModel carries it. Raises `UserError` if the file cannot be
    read, its SHA-256 is not `vocabulary.sha256`, or as `tokenizer_of`.
    """
    if in_sentence_pieces(config):
        layout = layout_of(config.vocabulary.layout)
        lines = piece_models.read_lines(vocabulary_file, layout is not None and layout.fairseq)
    else:
        lines = read_lines(vocabulary_file)
    check_digest(lines, config.vocabulary.sha256, vocabulary_file)
    return tokenizer_of(config, lines, vocabulary_file, asset=vocabulary_file if as_asset else "")


def tokenizer_of(
    config: ConfigDict,
    vocabulary: Sequence[str],
    name: str | pathlib.Path = "The vocabulary",
    asset: str | pathlib.Path = "",
) -> WordPieceTokenizer | WordTokenizer | SentencePieceTokenizer:
    """Builds the tokenizer that a whole configuration describes, for the lines of a vocabulary.

    Args:
      config: the whole configuration.
      vocabulary: the lines of the vocabulary's file.
      name: the vocabulary's name in errors.
      asset: the file, which the graph reads and a SavedModel carries; "": the graph holds the lines.

    Raises:
      UserError: lines that are not such a vocabulary, too many pieces, or settings that this tokenizer does not take.
    """
    settings = config.vocabulary
    options = dict(
        max_length=config.text_tower.max_length,
        lower_case=settings.lower_case,
        strip_accents=settings.strip_accents,
        vocabulary_file=asset,
        prompt=settings.prompt,
    )
    if in_sentence_pieces(config):
        if len(vocabulary) > settings.size:
            raise UserError(
                f"{name} has {len(vocabulary)} pieces and vocabulary.size={settings.size} rows: give "
                f"--config.vocabulary.size={len(vocabulary)}, or the file of the model with {settings.size} rows."
            )
        options |= dict(layout=settings.layout, cleaning=settings.cleaning, name=name)
        return SentencePieceTokenizer(vocabulary, **options)
    if takes_languages(config.text_tower):
        if settings.prompt:
            raise UserError(f"vocabulary.prompt={settings.prompt!r}: a tower of words of each language takes none.")
        return WordTokenizer(vocabulary, config.text_tower.languages, **options)
    check_vocabulary(vocabulary, str(name))
    if settings.builder == "byte_pair":
        return BytePairTokenizer(vocabulary, cleaning=settings.cleaning, **options)
    return WordPieceTokenizer(vocabulary, cleaning=settings.cleaning, **options)
