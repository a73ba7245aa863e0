"""Finds why a model knows some languages badly, and which cheap step would help.

    python -m mural_tf analyse doctor --model=WORKDIR --data_dir=DATA

For each language of a split: how its texts are divided into pieces, how far they lie from their translations in the
pivot language, how well images are found, and how many texts training had. `diagnose` names the first of these that
explains a low recall; the bounds are our choice. docs/languages.md says what to do.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from mural_lite import models
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.remote_folders import local_model
from mural_tf.data import records
from mural_tf.data.streams.text_text import pivot_languages
from mural_tf.evaluation.retrieval import UNDETERMINED, measure_retrieval
from mural_tf.text import build_tokenizer

UNKNOWN = 0.1  # share of pieces
CUT = 0.1  # share of texts
BELOW = 0.75  # of the pivot's recall: a language at or above it works
FEW_PAIRS = 0.1  # share of the pairs of the language with most
UNLIKE = 1.5  # how much likelier another language's pieces must make a text, nats per piece
SMOOTHING = 0.1  # added to the count of each piece
MOST_RECORDS = 200_000  # records of either kind that are read
CELLS = (  # the formats of a row's cells, by the fields of `Language`
    "{name} {captions:,} {pairs:,} {pieces_per_word:.1f} {unknown:.1%} {cut:.1%} {distance:.2f} {recall:.1f}".split()
)
PROFILE_TEXTS = 2_000  # training texts of a language whose pieces are counted

WELL = "well"
LABELS = "labels"
VOCABULARY = "vocabulary"
CUT_TEXTS = "cut texts"
PAIRS = "pairs"
STAGE = "stage"
ADVICE = {
    WELL: "nothing to do",
    LABELS: "its texts read like {looks_like}: check the language labels of the data",
    VOCABULARY: "{unknown:.0%} of its pieces are unknown: train with a vocabulary that has its text",
    CUT_TEXTS: "{cut:.0%} of its texts are longer than the model reads: train with a larger text_tower.max_length",
    PAIRS: "{pairs:,} translation pairs: add some, then the stage of translations (configs/translated.py)",
    STAGE: "{pairs:,} translation pairs and {distance:.2f} from {pivot}: the stage of translations "
    "(configs/translated.py)",
}
AFTER_STAGE = "{pairs:,} translation pairs and {distance:.2f} from {pivot} after the stage: more pairs, or more steps"


@dataclasses.dataclass
class TextsByLanguage:
    """The texts of a data set by language.

    split: {language: {image: its first caption}}.
    training: {language: up to `PROFILE_TEXTS` texts of captions and pairs}.
    captions, pairs: {language: how many training has}.
    """

    split: dict[str, dict[str, str]]
    training: dict[str, list[str]]
    captions: Mapping[str, int]
    pairs: Mapping[str, int]


@dataclasses.dataclass
class Language:
    """The measures of one language; shares are of 1, `distance` is 1 - cosine, `recall` in percent.

    `looks_like`: the language whose training texts its texts resemble most, "" where no texts can be compared.
    """

    name: str
    captions: int
    pairs: int
    pieces_per_word: float
    unknown: float
    cut: float
    distance: float
    recall: float
    looks_like: str
    diagnosis: str = ""


def read_texts(data_dir: str, split: str) -> TextsByLanguage:
    """Returns the texts of a split and of up to `MOST_RECORDS` training records of each kind.

    Raises `UserError` if the data lack the split.
    """
    split_texts = collections.defaultdict(dict)
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        for text, language in zip(record.captions, record.languages):
            if text.strip():
                split_texts[language or UNDETERMINED].setdefault(record.image_id, text)
    training = collections.defaultdict(list)
    captions = collections.Counter()
    pairs = collections.Counter()
    for record_type, counts in ((records.IMAGE_TEXT, captions), (records.TEXT_PAIRS, pairs)):
        for language, text in _training_texts(data_dir, record_type):
            language = language or UNDETERMINED
            counts[language] += 1
            if len(training[language]) < PROFILE_TEXTS:
                training[language].append(text)
    return TextsByLanguage(dict(split_texts), training, captions, pairs)


def _training_texts(data_dir: str, record_type: str) -> Iterator[tuple[str, str]]:
    """Yields (language, text) of the first `MOST_RECORDS` training records of a type; nothing without such records."""
    if not records.find_files(data_dir, record_type, "train"):
        return  # a data set without captions, or without pairs
    all_records = records.read_records(data_dir, record_type, "train", skip_damaged=True)
    for record in itertools.islice(all_records, MOST_RECORDS):
        if record_type == records.IMAGE_TEXT:
            yield from zip(record.languages, record.captions)
        else:
            yield record.language_a, record.text_a
            yield record.language_b, record.text_b


def examine(embedder, tokenizer, texts: TextsByLanguage, recalls: Mapping[str, float], pivot: str) -> list[Language]:
    """Returns the measures of each language of the split, with its diagnosis.

    Args:
      embedder: anything with `encode_text`.
      tokenizer: the model's word pieces.
      texts: the texts of `read_texts`.
      recalls: {language: mean recall, percent}.
      pivot: the language to compare with.

    Raises `UserError` if the split lacks the pivot.
    """
    if pivot not in texts.split:
        raise UserError(f"No captions in the pivot {pivot}; the split has {', '.join(sorted(texts.split))}.")
    profiles = {name: _log_shares(tokenizer, lines) for name, lines in texts.training.items()}
    vectors = {}
    for name, captions in texts.split.items():
        embeddings = embedder.encode_text(list(captions.values()), progress=False)
        vectors[name] = dict(zip(captions, embeddings))
    languages = {}
    for name, captions in texts.split.items():
        pieces, word_count = _pieces(tokenizer, list(captions.values()))
        all_pieces = np.concatenate(pieces)
        unknown = 1.0
        if len(all_pieces):
            unknown = float(np.mean(all_pieces == tokenizer.unknown_id))
        is_cut = [len(row) > tokenizer.max_length - 2 for row in pieces]  # 2: [CLS] and [SEP]
        languages[name] = Language(
            name,
            captions=texts.captions[name],
            pairs=texts.pairs[name],
            pieces_per_word=len(all_pieces) / max(1, word_count),
            unknown=unknown,
            cut=float(np.mean(is_cut)),
            distance=_distance(vectors[name], vectors[pivot]),
            recall=recalls[name],
            looks_like=_most_similar(name, all_pieces, profiles),
        )
    most_pairs = max((count for name, count in texts.pairs.items() if name != pivot), default=0)
    for language in languages.values():
        language.diagnosis = diagnose(language, languages[pivot], most_pairs)
    return list(languages.values())


def _distance(vectors: Mapping[str, np.ndarray], pivot: Mapping[str, np.ndarray]) -> float:
    """Returns the mean of 1 - cosine over the images that both languages have; NaN if they share no image.

    Args:
      vectors, pivot: {image: its caption's vector, L2-normalised}, in a language and in the pivot language.
    """
    cosines = [np.dot(vector, pivot[image]) for image, vector in vectors.items() if image in pivot]
    if not cosines:
        return float("nan")
    return 1.0 - float(np.mean(cosines, dtype=np.float64))


def diagnose(language: Language, pivot: Language, most_pairs: int) -> str:
    """Returns a key of `ADVICE`: the likeliest cause of a language's low recall, or `WELL`.

    Args:
      language, pivot: the measures of two languages.
      most_pairs: the number of translation pairs of the language that has most, the pivot left out.
    """
    if language.looks_like not in ("", language.name):
        return LABELS
    if language.name == pivot.name or language.recall >= BELOW * pivot.recall:
        return WELL
    if language.unknown > UNKNOWN:
        return VOCABULARY
    if language.cut > max(CUT, 2 * pivot.cut):  # texts that are long in all languages do not count
        return CUT_TEXTS
    return PAIRS if language.pairs <= FEW_PAIRS * most_pairs else STAGE


def describe(languages: Sequence[Language], pivot: str, taught: bool = False) -> str:
    """Returns a table, worst recall first, and a line of advice for each language that does not work well.

    `taught`: whether the model has had the stage of translations.
    """
    advice = dict(ADVICE)
    if taught:
        advice[STAGE] = AFTER_STAGE
    rows = [("language", "captions", "pairs", "pieces/word", "unknown", "cut", "distance", "recall", "finding")]
    advice_lines = []
    for language in sorted(languages, key=lambda language: language.recall):
        values = dataclasses.asdict(language)
        cells = [cell.format(**values) for cell in CELLS]
        rows.append([*cells, language.diagnosis])
        if language.diagnosis != WELL:
            advice_lines.append(f"{language.name}: {advice[language.diagnosis].format(**values, pivot=pivot)}.")
    if not advice_lines:
        advice_lines.append(f"Every language has {BELOW:.0%} of {pivot}'s recall or more.")
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join([*lines, "", *advice_lines, "See docs/languages.md."])


def _pieces(tokenizer, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
    """Returns the ids of each text's pieces, int64 [pieces] each, never cut, and the number of words of all texts."""
    words = tokenizer.tokenize(tf.constant(list(texts)))
    ids = words.merge_dims(1, 2)
    rows = np.split(ids.values.numpy().astype(np.int64), ids.row_splits.numpy()[1:-1])
    return rows, int(tf.reduce_sum(words.row_lengths()))


def _log_shares(tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Returns the logarithm of each piece's share of the texts' pieces, float64 [vocabulary], smoothed."""
    ids, _ = _pieces(tokenizer, texts)
    counts = np.bincount(np.concatenate(ids), minlength=tokenizer.vocabulary_size)
    smoothed = counts + SMOOTHING
    return np.log(smoothed / smoothed.sum())


def _most_similar(name: str, pieces: np.ndarray, profiles: Mapping[str, np.ndarray]) -> str:
    """Returns the language whose training texts make `pieces` likeliest by far, or else the language `name` itself.

    Args:
      name: the language of the pieces.
      pieces: ids, int [N]; without pieces, or without training texts of the language, "" is returned.
      profiles: {language: `_log_shares` of its training texts}.
    """
    if name not in profiles or not len(pieces):
        return ""
    log_likelihoods = {other: float(np.mean(profile[pieces])) for other, profile in profiles.items()}
    likeliest = max(log_likelihoods, key=log_likelihoods.get)
    if log_likelihoods[likeliest] > log_likelihoods[name] + UNLIKE:
        return likeliest
    return name


def check(model: str, data_dir: str, split: str, languages: Sequence[str], pivot: str) -> str:
    """Examines a model on a split, and returns the table and the advice of `describe`; prints languages left out.

    Args:
      model: a workdir or an export.
      data_dir: the folder of the data that the model was trained on.
      split: the split to measure.
      languages: BCP 47 tags, empty: all.
      pivot: the language to compare with, "": the language with most captions.

    Raises:
      UserError: a model without word pieces, or data without the split, the pivot or a language.
    """
    folder = local_model(model)
    embedder = models.open_model(model)
    config = load_config(folder / "config.json")
    if config.text_tower.name == "words":
        raise UserError(f"{model} knows whole words of each language; the doctor examines word pieces.")
    tokenizer = build_tokenizer(config, folder / "vocabulary.txt")
    texts = read_texts(data_dir, split)
    if not pivot:
        (pivot,) = pivot_languages("", lambda: texts.captions, lambda: texts.pairs)
    missing = sorted(set(languages) - texts.split.keys())
    if missing:
        raise UserError(
            f"No captions in {', '.join(missing)} in split {split!r} of {data_dir}; its languages: "
            f"{', '.join(sorted(texts.split))}."
        )
    chosen = (*languages, pivot) if languages else texts.split.keys()
    measured = [name for name in texts.split if name in chosen]
    metrics = measure_retrieval(embedder, data_dir, split, measured, name="doctor").metrics
    recalls = {}
    for name in sorted(measured):
        if f"doctor/{name}/mean_recall" in metrics:
            recalls[name] = metrics[f"doctor/{name}/mean_recall"]
        else:
            print(f"{name} is left out: no picture with a caption in it decodes.", flush=True)
    texts.split = {name: captions for name, captions in texts.split.items() if name in recalls}
    examined = examine(embedder, tokenizer, texts, recalls, pivot)
    return describe(examined, pivot, taught=config.model == "translation_distillation")
