"""From configuration to a data folder and a tokenizer: builds what can be built, checks what must be there."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from ml_collections import ConfigDict

from mural_tf.config import load_config, save_config
from mural_tf.data import records
from mural_tf.errors import UserError
from mural_tf.files import as_path, whole
from mural_tf.text import build_tokenizer, takes_languages
from mural_tf.text.language_words import build_words
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import digest, save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer

SOURCES = ("records", "emoji", "shapes")


def prepare_data(config: ConfigDict) -> pathlib.Path:
    """Returns the data folder, after building the emoji benchmark or the shapes in it if they are not there yet."""
    data = config.data
    if data.source not in SOURCES:
        raise UserError(f"Unknown data.source {data.source!r}; known: {', '.join(SOURCES)}.")
    if data.source == "emoji":
        from mural_tf.data.emoji.benchmark import build_emoji

        held_out = data.emoji_held_out_names
        build_emoji(data.directory, data.download_directory, languages=data.emoji_languages, held_out_names=held_out)
    elif data.source == "shapes":
        from mural_tf.data.shapes import build_shapes

        build_shapes(data.directory)
    records.list_files(data.directory, records.IMAGE_TEXT, "train")  # raises if there is nothing to train on
    return as_path(data.directory)


def prepare_tokenizer(config: ConfigDict, workdir: pathlib.Path) -> WordPieceTokenizer:
    """Returns the tokenizer of a run in an opened workdir, whose vocabulary it is from then on.

    The workdir's config.json gets the vocabulary's digest, and so does `config`. Raises `UserError` if the vocabulary
    is another than at the first start, or cannot be read.
    """
    own, recorded = workdir / "vocabulary.txt", load_config(workdir / "config.json")
    config.vocabulary.sha256 = config.vocabulary.sha256 or recorded.vocabulary.sha256
    if not own.exists():
        source = find_vocabulary(config)
        config.vocabulary.sha256 = digest(build_tokenizer(config, source).vocabulary)
        with whole(own) as partial:
            partial.write_bytes(source.read_bytes())
    tokenizer = build_tokenizer(config, own)
    if not recorded.vocabulary.sha256:  # also of a run that began before there were digests
        config.vocabulary.sha256 = recorded.vocabulary.sha256 = digest(tokenizer.vocabulary)
        save_config(recorded, workdir / "config.json")
    return tokenizer


def find_vocabulary(config: ConfigDict) -> pathlib.Path:
    """Returns the file of the vocabulary that a configuration names or, if it names none, of the training text.

    The latter is built once and kept beside the data, so that other runs on the same data share it.
    """
    return as_path(config.vocabulary.file) if config.vocabulary.file else _built_vocabulary(config)


def _built_vocabulary(config: ConfigDict) -> pathlib.Path:
    settings = config.vocabulary
    casing = ("lower" if settings.lower_case else "cased") + ("-unaccented" if settings.strip_accents else "")
    languages = config.text_tower.languages if takes_languages(config.text_tower) else ()
    name = f"words-{'-'.join(languages)}" if languages else settings.builder
    path = as_path(config.data.directory) / f"vocabulary-{name}-{settings.size}-{casing}.txt"
    if not path.exists() and languages:
        print(f"Collecting up to {settings.size} words in {len(languages)} languages …", flush=True)
        texts = _training_texts_by_language(config.data.directory)
        words = build_words(texts, languages, settings.size, settings.lower_case, settings.strip_accents)
        save_vocabulary(words, path)
    if not path.exists():
        print(f"Building a vocabulary of up to {settings.size} word pieces ({settings.builder}) …", flush=True)
        pieces = build_vocabulary(
            _training_texts(config.data.directory),
            settings.size,
            builder=settings.builder,
            lower_case=settings.lower_case,
            strip_accents=settings.strip_accents,
        )
        save_vocabulary(pieces, path)
    return path


def _training_texts(directory: str) -> Iterator[str]:
    return (text for _, text in _training_texts_by_language(directory))


def _training_texts_by_language(directory: str) -> Iterator[tuple[str, str]]:
    for record in records.read_records(directory, records.IMAGE_TEXT, "train", skip_damaged=True):
        yield from zip(record.languages, record.captions)
    try:
        pairs = records.list_files(directory, records.TEXT_PAIRS, "train")
    except UserError:
        pairs = []  # a data set of captions alone
    if pairs:
        for pair in records.read_records(directory, records.TEXT_PAIRS, "train", skip_damaged=True):
            yield pair.language_a, pair.text_a
            yield pair.language_b, pair.text_b
