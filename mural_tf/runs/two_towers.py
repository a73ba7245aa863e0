"""Two text towers in one export: each text goes through the one that dev prefers for its language, or through both.

A bridged tower knows more languages than the model that taught it, and those that the teacher knows it often knows less
well. Both embed into one space, so each text can go its own way. Dev says which tower a language takes. Where the
towers' recalls are too close for dev's few images to tell them apart, a text's vector is the mean of both towers': two
weak towers err in different ways, so their mean is seldom worse than the better one, and a wrong choice would be.

A text does not say its language, so the graph guesses the own tower's share from the text's letters: it adds a weight
for each run of one to three letters, a logistic regression on the training texts (Cavnar and Trenkle, "N-Gram-Based
Text Categorization", 1994, find languages by such runs). A language counts by what is at stake on dev, all its texts
together; a text that could be of two languages gets the mean, too.
"""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
from mural_tf.data import records
from mural_tf.encoders.saved_models import load_saved_model, seal_graph
from mural_tf.errors import UserError
from mural_tf.evaluation.retrieval import measure_retrieval
from mural_tf.export.saved_model import save_for_inference
from mural_tf.export.serving import IMAGE_ENCODER, TEXT_ENCODER, write_warmup_requests
from mural_tf.export.versions import MODEL_CARD, newest_description, newest_version
from mural_tf.files import as_path, exclusive_lock, read_json, whole_folder
from mural_tf.loading import load
from mural_tf.remote_folders import local_copy, shown

BUCKETS = 2**16  # of runs of letters, by a hash
RUNS = (1, 2, 3)  # letters
ROUNDS, RATE = 300, 0.5  # of Adagrad, on all texts at once
SURE = 2.0  # standard errors of the difference between two recalls on dev, from which on it chooses a tower
# Of a recall's standard error, if its six numbers were one, and the towers' hits independent: 1.3 points where 369
# images are found at a mean recall of 5.
ERROR_SHARE = 0.8
ALONE = 0.2  # a tower's share below which a text goes without it


class Choice(NamedTuple):
    """What dev says of a language: the own tower's share of a text's vector, and the points of recall at stake."""

    share: float
    stake: float


def choose(own: float, other: float, images: int) -> Choice:
    """Returns the choice for a language by both towers' mean recalls, in percent, on so many images."""
    mean = (own + other) / 2
    error = ERROR_SHARE * math.sqrt(2 * mean * (100 - mean) / max(images, 1))
    gain = own - other
    return Choice(float(gain > 0), abs(gain)) if abs(gain) > SURE * error else Choice(0.5, max(abs(gain), error))


class Ways(tf.Module):
    """Tells for each text the share of the model's own tower in its vector: string [B] → float32 [B], from 0 to 1."""

    def __init__(self, weights: np.ndarray):
        """`weights`: float32 [BUCKETS + 1], of the runs and of every text; positive for the own tower."""
        super().__init__()
        self.weights = tf.Variable(weights, trainable=False, name="weights")

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        buckets = buckets_of(texts)
        sums = tf.reduce_sum(tf.gather(self.weights, buckets), axis=1)
        counts = tf.cast(tf.maximum(buckets.row_lengths(), 1), tf.float32)
        share = tf.sigmoid(sums / tf.sqrt(counts) + self.weights[-1])
        return tf.where(share < ALONE, 0.0, tf.where(share > 1.0 - ALONE, 1.0, share))


def buckets_of(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns int64 [B, (runs)]: for each run of letters of a text, string [B], its bucket."""
    texts = tf.strings.substr(tf.strings.join([" ", tf.strings.lower(texts, "utf-8"), " "]), 0, 256, unit="UTF8_CHAR")
    letters = tf.strings.unicode_split(texts, "UTF-8")
    return tf.strings.to_hash_bucket_fast(tf.strings.ngrams(letters, RUNS, separator=""), BUCKETS)


def learn_ways(texts: Sequence[str], languages: Sequence[str], choices: Mapping[str, Choice]) -> np.ndarray:
    """Returns the weights of `Ways`, float32 [BUCKETS + 1].

    Args:
      texts, languages: of training, one language for each text.
      choices: by language; a text of a language without one counts nothing.
    """
    shares, stakes = np.array([choices.get(language, Choice(0.5, 0.0)) for language in languages]).reshape(-1, 2).T
    counts = {language: number for language, number in zip(*np.unique(languages, return_counts=True))}
    stakes = stakes / np.array([counts[language] for language in languages])
    stakes /= max(stakes.sum(), 1e-12)
    buckets = buckets_of(tf.constant([text.encode("utf-8", "replace") for text in texts]))
    columns, rows = buckets.flat_values.numpy(), buckets.value_rowids().numpy()
    scale = 1.0 / np.sqrt(np.maximum(buckets.row_lengths().numpy(), 1))
    weights, squares = np.zeros(BUCKETS + 1), np.full(BUCKETS + 1, 1e-12)
    for _ in range(ROUNDS):
        sums = np.bincount(rows, weights[columns], len(texts)) * scale + weights[-1]
        errors = (1.0 / (1.0 + np.exp(-sums)) - shares) * stakes
        slopes = np.append(np.bincount(columns, (errors * scale)[rows], BUCKETS), errors.sum())
        squares += slopes**2
        weights -= RATE * slopes / np.sqrt(squares)
    return weights.astype(np.float32)


class TwoTowers(tf.Module):
    """Both text encoders, as exports have them: string [B] → float32 [B, D]."""

    def __init__(self, own, other, ways: Ways):
        super().__init__()
        self.own, self.other, self.ways = own, other, ways

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def embed(self, text):
        of_own = self.ways(text)
        rows, parts = [], []
        for tower, shares in ((self.own, of_own), (self.other, 1.0 - of_own)):
            rows.append(tf.where(shares > 0.0)[:, 0])
            vectors = tower.signatures["serving_default"](text=tf.gather(text, rows[-1]))["embedding"]
            parts.append(vectors * tf.gather(shares, rows[-1])[:, None])
        embeddings = tf.scatter_nd(  # which adds up what has one row
            tf.concat(rows, axis=0)[:, None],
            tf.concat(parts, axis=0),
            [tf.size(text, tf.int64), parts[0].shape[1]],
        )
        of_both = tf.logical_and(of_own > 0.0, of_own < 1.0)[:, None]
        return {"embedding": tf.where(of_both, tf.math.l2_normalize(embeddings, axis=-1), embeddings)}


def training_texts(data_dir: str) -> tuple[list[str], list[str]]:
    """Returns the texts of training and their languages, each once."""
    found: dict[tuple[str, str], None] = {}
    if records.find_files(data_dir, records.IMAGE_TEXT, "train"):
        for record in records.read_records(data_dir, records.IMAGE_TEXT, "train"):
            found.update(dict.fromkeys(zip(record.captions, record.languages)))
    if records.find_files(data_dir, records.TEXT_PAIRS, "train"):
        for pair in records.read_records(data_dir, records.TEXT_PAIRS, "train"):
            found[pair.text_a, pair.language_a] = found[pair.text_b, pair.language_b] = None
    texts, languages = zip(*found)
    return list(texts), list(languages)


def export_two_towers(other: str, own: str, data_dir: str, output: str) -> dict[str, dict[str, float]]:
    """Writes an export with both text towers and returns dev's mean recall by language, {"own", "other"} each.

    It has no `hub` modules: a text tower there has one vocabulary.

    Args:
      other: an export of a bridged model.
      own: an export of the model that it was bridged to, with the same images' side.
      data_dir: has training texts with their languages, and a dev split.
      output: the folder to make.

    Raises:
      UserError: the exports are not of one space, the data says too little, or `output` is there.
    """
    folders = [pathlib.Path(local_copy(path)) for path in (own, other)]
    embedders = dict(zip(("own", "other"), map(load, folders)))
    picture = np.random.default_rng(0).integers(0, 256, [64, 64, 3], np.uint8)
    difference = np.abs(np.subtract(*(embedder.encode_image([picture]) for embedder in embedders.values()))).max()
    if difference > 1e-3:
        raise UserError(f"{own} and {other} embed an image {difference:.2g} apart: give a model and its bridge.")
    measured = {name: measure_retrieval(embedder, data_dir, "dev") for name, embedder in embedders.items()}
    recalls = {
        language: {name: found.metrics[f"retrieval/{language}/mean_recall"] for name, found in measured.items()}
        for language in measured["own"].sizes
    }
    images = {language: size["images"] for language, size in measured["own"].sizes.items()}
    choices = {language: choose(**found, images=images[language]) for language, found in recalls.items()}
    weights = learn_ways(*training_texts(data_dir), choices)

    output = as_path(output)
    with exclusive_lock(output.parent / f".{output.name}.lock", f"Another process is writing {output}."):
        if output.exists():
            raise UserError(f"{output} exists: name another folder.")
        with whole_folder(output, MODEL_CARD) as partial:
            _write(partial, folders, Ways(weights), recalls)
    for share, way in ((1.0, "the own tower"), (0.5, "the mean of both towers")):
        chosen = ", ".join(language for language, choice in choices.items() if choice.share == share) or "none"
        print(f"Languages whose texts take {way}: {chosen}.", flush=True)
    print(f"Written: {shown(output)}", flush=True)
    return recalls


def _write(folder: pathlib.Path, folders: Sequence[pathlib.Path], ways: Ways, recalls: Mapping) -> None:
    other = folders[1]
    number = newest_version(other, (IMAGE_ENCODER, TEXT_ENCODER))
    shutil.copytree(other / IMAGE_ENCODER / str(number), folder / IMAGE_ENCODER / "1")
    shutil.copytree(other / "serving", folder / "serving")
    described = newest_description(other)
    for name in ("config.json", "vocabulary.txt"):
        shutil.copy(described / name, folder / name)
    towers = [
        load_saved_model(path / TEXT_ENCODER / str(newest_version(path, (IMAGE_ENCODER, TEXT_ENCODER))))
        for path in folders
    ]
    module = TwoTowers(*towers, ways)
    place = folder / TEXT_ENCODER / "1"
    save_for_inference(module, place, {"serving_default": module.embed})
    write_warmup_requests(place, TEXT_ENCODER)
    seal_graph(place)
    card = read_json(described / MODEL_CARD) | {"version": 1, "text_towers": recalls}
    (folder / MODEL_CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
