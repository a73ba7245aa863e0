"""From configuration to a data folder and a tokenizer: builds them where they are missing, or says why it cannot."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from mural_lite import hugging_face
from mural_lite.config import takes_languages
from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError
from mural_lite.files import as_path, check_readable
from mural_lite.registry import load_registered, registered
from mural_tf.data import records
from mural_tf.data.streams.mixture import training_sources
from mural_tf.text import build_tokenizer
from mural_tf.text.language_words import build_words
from mural_tf.text.learning import build_vocabulary
from mural_tf.text.vocabulary_file import digest, save_vocabulary
from mural_tf.text.word_pieces import WordPieceTokenizer

# Fields that name a file or folder.
PLACES = (
    "data.directory", "evaluation.source_data", "vocabulary.file", "text_tower.word_vectors", "image_tower.class_names",
    "image_tower.handle", "text_tower.handle",
)  # fmt: skip
ADDRESSES = ("vocabulary.file", "image_tower.handle", "text_tower.handle")  # may also name an address, as of TF-Hub
MODELS = ("image_tower.weights", "text_tower.weights")  # or a name on the Hugging Face Hub


def check_places(config: ConfigDict) -> None:
    """Raises `UserError` for a place or model that a configuration names where nothing here can read; reads nothing."""
    for name in (*PLACES, *MODELS):
        value = functools.reduce(getattr, name.split("."), config)
        is_address = name in ADDRESSES and value.startswith(("https://", "http://"))
        if name in MODELS and hugging_face.is_name(value):
            hugging_face.check(value)
        elif not is_address:
            check_readable(value)
    if config.data.sources:
        for source in training_sources(config.data):
            check_readable(source.directory)


# Numbers of a vocabulary that only a measurement uses.
SAMPLED_TEXTS = 2_000
SAMPLED_PIECES = 8_000


def prepare_data(config: ConfigDict) -> pathlib.Path:
    """Builds the data of `data.source` if they are missing, and returns their folder; raises as `check_data`.

    A source that builds its data is registered under the entry point `mural.data`, as in `mural_tf.demo`.
    """
    data = config.data
    build = load_registered("mural.data", data.source)
    if build is not None:
        build(data)
    check_data(data)
    return as_path(data.directory)


def check_data(data: ConfigDict) -> None:
    """Raises `UserError` if the `data` branch of a configuration names an unknown source, or nothing to train on."""
    known_names = ["records", *registered("mural.data")]
    if data.source not in known_names:
        raise UserError(
            f"Unknown data.source {data.source!r}; known: {', '.join(known_names)}. Install the package that registers "
            "it; in a checkout, run `pip install -e .` again."
        )
    for source in training_sources(data):
        text_pair_files = records.find_files(source.directory, records.TEXT_PAIRS, "train")
        if data.sources and text_pair_files:
            continue  # in a mixture, the images may come from the other sources
        source.files(records.IMAGE_TEXT)  # called only for its `UserError`, where there are no such files


def prepare_tokenizer(config: ConfigDict, workdir: pathlib.Path) -> WordPieceTokenizer:
    """Returns the tokenizer of a run in an opened workdir; a run's first start builds or copies the vocabulary there.

    The workdir's config.json gets the vocabulary's digest, and so does `config`. Raises `UserError` if the vocabulary
    is another than at the first start, or cannot be read.
    """
    path = workdir / "vocabulary.txt"
    recorded = load_config(workdir / "config.json")
    if not config.vocabulary.sha256:
        config.vocabulary.sha256 = recorded.vocabulary.sha256
    if not path.exists():
        tokenizer = build_tokenizer(config, find_vocabulary(config))
        config.vocabulary.sha256 = digest(tokenizer.vocabulary)
        tokenizer.save(path)
    tokenizer = build_tokenizer(config, path)
    if not recorded.vocabulary.sha256:  # also of a run that began before there were digests
        vocabulary_digest = digest(tokenizer.vocabulary)
        config.vocabulary.sha256 = vocabulary_digest
        recorded.vocabulary.sha256 = vocabulary_digest
        save_config(recorded, workdir / "config.json")
    return tokenizer


def find_vocabulary(config: ConfigDict) -> pathlib.Path:
    """Returns the vocabulary file that a configuration names, or else a vocabulary of the training texts.

    It is built once and kept next to the data, so that runs on the same data share it.
    """
    if config.vocabulary.file:
        return as_path(config.vocabulary.file)
    return _ensure_vocabulary(config)


def existing_vocabulary(config: ConfigDict) -> pathlib.Path | None:
    """Returns the file that `find_vocabulary` would take, or `None` where it would first have to build it."""
    if config.vocabulary.file:
        return as_path(config.vocabulary.file)
    path = _path_beside_data(config)
    return path if path.exists() else None


def sampled_vocabulary(config: ConfigDict, folder: pathlib.Path) -> pathlib.Path:
    """Writes a vocabulary of only the first texts into `folder` and returns its path: to measure, not to train."""
    texts = itertools.islice(_training_texts_by_language(config.data), SAMPLED_TEXTS)
    path = folder / "vocabulary.txt"
    save_vocabulary(_learn_vocabulary(config, texts, min(config.vocabulary.size, SAMPLED_PIECES)), path)
    return path


def _path_beside_data(config: ConfigDict) -> pathlib.Path:
    """Returns the path of a vocabulary of the training texts, whose name says how it is built.

    For example "vocabulary-wordpiece-30000-lower.txt" or "vocabulary-words-de-en-1000-cased-unaccented.txt".
    """
    settings = config.vocabulary
    languages = _languages_of_words(config)
    builder = f"words-{'-'.join(languages)}" if languages else settings.builder
    parts = ["vocabulary", builder, str(settings.size), "lower" if settings.lower_case else "cased"]
    if settings.strip_accents:
        parts.append("unaccented")
    if config.data.sources:  # other sources may be mixed in the same `data.directory`
        parts.append(_digest_of_sources(config.data))
    return as_path(config.data.directory) / f"{'-'.join(parts)}.txt"


def _digest_of_sources(data: ConfigDict) -> str:
    """Returns 8 hexadecimal digits that identify the files of `data.sources`, by their names and sizes."""
    descriptions = []
    for source in training_sources(data):
        files = records.find_files(source.directory, records.IMAGE_TEXT, "train")
        files += records.find_files(source.directory, records.TEXT_PAIRS, "train")
        descriptions.append(records.describe_files(source.directory, files))
    return hashlib.blake2b(json.dumps(descriptions, sort_keys=True).encode(), digest_size=4).hexdigest()


def _languages_of_words(config: ConfigDict) -> tuple[str, ...]:
    """Returns the languages of a tower of words; () for other towers."""
    return config.text_tower.languages if takes_languages(config.text_tower) else ()


def _ensure_vocabulary(config: ConfigDict) -> pathlib.Path:
    """Builds the training texts' vocabulary next to the data if it is missing, and returns its file."""
    path = _path_beside_data(config)
    if path.exists():
        return path
    settings = config.vocabulary
    languages = _languages_of_words(config)
    if languages:
        print(f"Collecting up to {settings.size} words in {len(languages)} languages …", flush=True)
    else:
        print(f"Building a vocabulary of up to {settings.size} word pieces ({settings.builder}) …", flush=True)
    texts = _training_texts_by_language(config.data)
    save_vocabulary(_learn_vocabulary(config, texts, settings.size), path)
    return path


def _learn_vocabulary(config: ConfigDict, texts: Iterable[tuple[str, str]], size: int) -> list[str]:
    """Returns the lines of a vocabulary: word pieces or, for a tower of words, words.

    Args:
      config: the run's configuration.
      texts: (language, text) pairs.
      size: the most pieces or words.
    """
    settings = config.vocabulary
    casing = dict(lower_case=settings.lower_case, strip_accents=settings.strip_accents)
    languages = _languages_of_words(config)
    if languages:
        return build_words(texts, languages, size, **casing)
    texts_only = (text for _, text in texts)
    return build_vocabulary(texts_only, size, builder=settings.builder, **casing)


def _training_texts_by_language(data: ConfigDict) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of all sources' training texts, without damaged records.

    Raises `UserError` for a source in another format than this project's records.
    """
    for source in training_sources(data):
        if source.format != "mural":
            name = f"data.sources.{source.name}" if source.name else "data"
            raise UserError(
                f"{name}.format={source.format}: a vocabulary is built from this project's records. Name one with "
                "--config.vocabulary.file, as python -m mural_tf vocabulary makes it of any source."
            )
        yield from texts_of(source.directory, skip_damaged=True)


def texts_of(directory: str, skip_damaged: bool = False) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of a folder's training records: captions, then both sides of text pairs.

    Args:
      directory: a data folder.
      skip_damaged: leave out damaged records, for which `UserError` is raised otherwise.
    """
    for record_type in (records.IMAGE_TEXT, records.TEXT_PAIRS):
        if not records.find_files(directory, record_type, "train"):
            continue
        for record in records.read_records(directory, record_type, "train", skip_damaged=skip_damaged):
            if record_type == records.IMAGE_TEXT:
                yield from zip(record.languages, record.captions)
            else:
                yield record.language_a, record.text_a
                yield record.language_b, record.text_b
