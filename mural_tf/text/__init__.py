"""Vocabularies and the in-graph tokenizers that data, evaluation and export share; `build_tokenizer` picks one."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.text import piece_models
from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.language_words import WordTokenizer
from mural_tf.text.sentence_pieces import LAYOUTS, SentencePieceTokenizer
from mural_tf.text.vocabulary_file import check_digest, check_vocabulary, read_lines
from mural_tf.text.word_pieces import WordPieceTokenizer


def takes_languages(tower: ConfigDict) -> bool:
    """Whether the text tower of a configuration has words of each language, so that texts may name theirs."""
    return tower.name == "words"


def build_tokenizer(
    config: ConfigDict, vocabulary_file: str | pathlib.Path, as_asset: bool = False
) -> WordPieceTokenizer | WordTokenizer | SentencePieceTokenizer:
    """Builds the tokenizer that a whole configuration tree describes, on a vocabulary file.

    `as_asset`: the graph reads the file, and a SavedModel carries it.
    Raises `UserError` for a file that is no such vocabulary, or not the one of `vocabulary.sha256`.
    """
    settings = config.vocabulary
    in_sentence_pieces = settings.builder == "sentence_pieces" and not takes_languages(config.text_tower)
    if in_sentence_pieces:
        layout = LAYOUTS.get(settings.layout)
        vocabulary = piece_models.read_lines(vocabulary_file, layout is not None and layout.fairseq)
    else:
        vocabulary = read_lines(vocabulary_file)
    check_digest(vocabulary, config.vocabulary.sha256, vocabulary_file)
    options = dict(
        max_length=config.text_tower.max_length,
        lower_case=config.vocabulary.lower_case,
        strip_accents=config.vocabulary.strip_accents,
        vocabulary_file=vocabulary_file if as_asset else "",
    )
    if in_sentence_pieces:
        if len(vocabulary) > settings.size:
            raise UserError(
                f"{vocabulary_file} has {len(vocabulary)} pieces and vocabulary.size={settings.size} rows: give "
                f"--config.vocabulary.size={len(vocabulary)}, or the file of a model with so many rows."
            )
        options |= dict(layout=settings.layout, cleaning=settings.cleaning, name=vocabulary_file)
        return SentencePieceTokenizer(vocabulary, **options)
    if takes_languages(config.text_tower):
        return WordTokenizer(vocabulary, config.text_tower.languages, **options)
    kind = BytePairTokenizer if config.vocabulary.builder == "byte_pair" else WordPieceTokenizer
    check_vocabulary(vocabulary, str(vocabulary_file))
    return kind(vocabulary, **options)
