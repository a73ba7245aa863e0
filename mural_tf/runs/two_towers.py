"""Two text towers in one export: each text goes through the tower that dev prefers for its language.

A bridged tower knows more languages than the model that taught it, and the languages that the teacher knows it often
knows less well. Both embed into one space, so each text can go its own way. Dev says which tower a language takes. A
text does not say its language, so the graph guesses the way from the text's letters: it adds a weight for each run of
one to three letters, a logistic regression on the training texts (Cavnar and Trenkle, "N-Gram-Based Text
Categorization", 1994, find languages by such runs). A language counts by what dev's recall differs between the towers,
all its texts together.

Recalls are taken as among `GALLERY` pictures. Dev has fewer, which favours a tower that is about right everywhere over
one that knows some names exactly and no others: the first five of 369 pictures are the first fourteen of a thousand. By
R@1, 5 and 10 of 369 the bridged tower was preferred in languages in which it was worse.
"""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, exclusive_lock, read_json, whole_folder
from mural_lite.models import open_model
from mural_lite.remote_folders import display_name, local_copy
from mural_lite.versions import MODEL_CARD, newest_description, newest_version
from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
from mural_tf.data import records
from mural_tf.encoders.saved_models import load_saved_model, seal_graph
from mural_tf.evaluation.retrieval import encode_captions, read_pool
from mural_tf.export.saved_model import save_for_inference
from mural_tf.export.serving import IMAGE_ENCODER, TEXT_ENCODER, write_warmup_requests
from mural_tf.metrics import ranking

BUCKETS = 2**16  # of runs of letters, by a hash
RUNS = (1, 2, 3)  # letters
ROUNDS = 300  # of Adagrad, on all texts at once
RATE = 0.5
GALLERY = 1_000  # pictures, about as many as are searched later


class Ways(tf.Module):
    """Tells for each text whether it takes the model's own tower: string [B] → bool [B]."""

    def __init__(self, weights: np.ndarray):
        """`weights`: float32 [BUCKETS + 1], of the runs and of every text; positive for the own tower."""
        super().__init__()
        self.weights = tf.Variable(weights, trainable=False, name="weights")

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        buckets = buckets_of(texts)
        sums = tf.reduce_sum(tf.gather(self.weights, buckets), axis=1)
        counts = tf.cast(tf.maximum(buckets.row_lengths(), 1), tf.float32)
        return sums / tf.sqrt(counts) + self.weights[-1] > 0.0


def buckets_of(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns int64 [B, (runs)]: for each run of letters of a text, string [B], its bucket."""
    spaced = tf.strings.join([" ", tf.strings.lower(texts, "utf-8"), " "])
    letters = tf.strings.unicode_split(tf.strings.substr(spaced, 0, 256, unit="UTF8_CHAR"), "UTF-8")
    return tf.strings.to_hash_bucket_fast(tf.strings.ngrams(letters, RUNS, separator=""), BUCKETS)


def learn_ways(texts: Sequence[str], languages: Sequence[str], gains: Mapping[str, float]) -> np.ndarray:
    """Returns the weights of `Ways`, float32 [BUCKETS + 1].

    Args:
      texts, languages: of training, one language for each text.
      gains: by language, points of recall that the own tower gains on dev; texts of other languages count nothing.
    """
    gain = np.array([gains.get(language, 0.0) for language in languages])
    counts = collections.Counter(languages)
    stakes = np.abs(gain) / np.array([counts[language] for language in languages])
    stakes /= max(stakes.sum(), 1e-12)
    buckets = buckets_of(tf.constant([text.encode("utf-8", "replace") for text in texts]))
    columns = buckets.flat_values.numpy()
    rows = buckets.value_rowids().numpy()
    scale = 1.0 / np.sqrt(np.maximum(buckets.row_lengths().numpy(), 1))
    weights = np.zeros(BUCKETS + 1)
    squares = np.full(BUCKETS + 1, 1e-12)
    for _ in range(ROUNDS):
        sums = np.bincount(rows, weights[columns], len(texts)) * scale + weights[-1]
        errors = (1.0 / (1.0 + np.exp(-sums)) - (gain > 0)) * stakes
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
        is_own = self.ways(text)
        rows, parts = [], []
        for tower, mask in ((self.own, is_own), (self.other, tf.logical_not(is_own))):
            rows.append(tf.where(mask)[:, 0])
            parts.append(tower.signatures["serving_default"](text=tf.gather(text, rows[-1]))["embedding"])
        indices = tf.concat(rows, axis=0)[:, None]
        shape = [tf.size(text, tf.int64), parts[0].shape[1]]
        return {"embedding": tf.scatter_nd(indices, tf.concat(parts, axis=0), shape)}


def training_texts(data_dir: str) -> tuple[list[str], list[str]]:
    """Returns the texts of training and their languages, each once."""
    pairs: dict[tuple[str, str], None] = {}
    if records.find_files(data_dir, records.IMAGE_TEXT, "train"):
        for record in records.read_records(data_dir, records.IMAGE_TEXT, "train"):
            pairs.update(dict.fromkeys(zip(record.captions, record.languages)))
    if records.find_files(data_dir, records.TEXT_PAIRS, "train"):
        for pair in records.read_records(data_dir, records.TEXT_PAIRS, "train"):
            pairs[pair.text_a, pair.language_a] = pairs[pair.text_b, pair.language_b] = None
    texts, languages = zip(*pairs)
    return list(texts), list(languages)


def dev_recalls(embedder: Embedder, data_dir: str) -> dict[str, float]:
    """Returns by language how well dev's images and captions find each other, as among `GALLERY` images, in percent.

    It is the mean of both directions and of R@1, 5 and 10 in such a gallery. In dev these are lower ranks, at least 1.
    """
    pool = read_pool(data_dir, "dev")
    wanted = sorted(set().union(*pool.owners.values()))
    images, kept = embedder.encode_image(pool.read(wanted), on_error="skip", progress=False)
    row_of = np.full(len(pool.image_numbers), -1)
    row_of[np.array(wanted)[kept]] = np.arange(len(kept))
    recalls = {}
    for language, captions in sorted(pool.texts.items()):
        owners = row_of[pool.owners[language]]
        texts = [text for text, owner in zip(captions, owners) if owner >= 0]
        if not texts:  # its only images cannot be read
            continue
        with_caption, owners = np.unique(owners[owners >= 0], return_inverse=True)
        pairs = owners, np.arange(len(texts))
        ranks = ranking.ranks_both_ways(images[with_caption], encode_captions(embedder, texts, language), pairs)
        firsts = [max(1, round(first * len(with_caption) / GALLERY)) for first in ranking.CUTOFFS]
        by_rank = [ranking.recall_at(way, first) for way, first in itertools.product(ranks, firsts)]
        recalls[language] = float(np.mean(by_rank))
    return recalls


def export_two_towers(other: str, own: str, data_dir: str, output: str) -> dict[str, dict[str, float]]:
    """Writes an export with both text towers and returns `dev_recalls` by language, {"own", "other"} each.

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
    embedders = [open_model(folder) for folder in folders]
    picture = np.random.default_rng(0).integers(0, 256, [64, 64, 3], np.uint8)
    vectors = [embedder.encode_image([picture]) for embedder in embedders]
    difference = np.abs(vectors[0] - vectors[1]).max()
    if difference > 1e-3:
        raise UserError(f"{own} and {other} embed an image {difference:.2g} apart: give a model and its bridge.")
    by_own, by_other = [dev_recalls(embedder, data_dir) for embedder in embedders]
    recalls = {language: {"own": recall, "other": by_other[language]} for language, recall in by_own.items()}
    gains = {language: recall - by_other[language] for language, recall in by_own.items()}
    weights = learn_ways(*training_texts(data_dir), gains)

    output = as_path(output)
    with exclusive_lock(output.parent / f".{output.name}.lock", f"Another process is writing {output}."):
        if output.exists():
            raise UserError(f"{output} exists: name another folder.")
        with whole_folder(output, MODEL_CARD) as partial:
            _write(partial, folders, Ways(weights), recalls)
    by_own_tower = ", ".join(language for language, gain in gains.items() if gain > 0) or "none"
    print(f"Languages whose texts take the own tower: {by_own_tower}. Written: {display_name(output)}", flush=True)
    return recalls


def _write(folder: pathlib.Path, folders: Sequence[pathlib.Path], ways: Ways, recalls: Mapping) -> None:
    """Writes the export of two others, the own model's and its bridge's."""
    other = folders[1]
    shutil.copytree(other / IMAGE_ENCODER / _newest(other), folder / IMAGE_ENCODER / "1")
    shutil.copytree(other / "serving", folder / "serving")
    described = newest_description(other)
    for name in ("config.json", "vocabulary.txt"):
        shutil.copy(described / name, folder / name)
    towers = [load_saved_model(export / TEXT_ENCODER / _newest(export)) for export in folders]
    module = TwoTowers(*towers, ways)
    encoder_folder = folder / TEXT_ENCODER / "1"
    save_for_inference(module, encoder_folder, {"serving_default": module.embed})
    write_warmup_requests(encoder_folder, TEXT_ENCODER)
    seal_graph(encoder_folder)
    card = read_json(described / MODEL_CARD) | {"version": 1, "text_towers": recalls}
    (folder / MODEL_CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _newest(export: pathlib.Path) -> str:
    return str(newest_version(export, (IMAGE_ENCODER, TEXT_ENCODER)))
