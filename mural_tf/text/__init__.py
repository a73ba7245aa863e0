"""Vocabularies and the in-graph tokenizers that data, evaluation and export share; `build_tokenizer` picks one."""

from __future__ import annotations

import pathlib

from ml_collections import ConfigDict

from mural_tf.text.byte_pair import BytePairTokenizer
from mural_tf.text.language_words import WordTokenizer
from mural_tf.text.vocabulary_file import check_digest, check_vocabulary, read_lines
from mural_tf.text.word_pieces import WordPieceTokenizer


def takes_languages(tower: ConfigDict) -> bool:
    """Whether the text tower of a configuration has words of each language, so that texts may name theirs."""
    return tower.name == "words"


def build_tokenizer(
    config: ConfigDict, vocabulary_file: str | pathlib.Path, as_asset: bool = False
) -> WordPieceTokenizer | WordTokenizer:
    """Builds the tokenizer that a whole configuration tree describes, on a vocabulary file.

    `as_asset`: the graph reads the file, and a SavedModel carries it.
    Raises `UserError` for a file that is no such vocabulary, or not the one of `vocabulary.sha256`.
    """
    vocabulary = read_lines(vocabulary_file)
    check_digest(vocabulary, config.vocabulary.sha256, vocabulary_file)
    options = dict(
        max_length=config.text_tower.max_length,
        lower_case=config.vocabulary.lower_case,
        strip_accents=config.vocabulary.strip_accents,
        vocabulary_file=vocabulary_file if as_asset else "",
    )
    if takes_languages(config.text_tower):
        return WordTokenizer(vocabulary, config.text_tower.languages, **options)
    kind = BytePairTokenizer if config.vocabulary.builder == "byte_pair" else WordPieceTokenizer
    check_vocabulary(vocabulary, str(vocabulary_file))
    return kind(vocabulary, **options)
