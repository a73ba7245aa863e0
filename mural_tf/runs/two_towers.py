"""Two text towers in one export: each text goes through the tower that dev prefers for its language.

A bridged tower knows more languages than the model that taught it (the "own" tower), but often knows the teacher's
languages less well. Both embed into one space, so each text can take the better tower. Dev says which tower is better
for a language. A text does not say its language, so the graph guesses the tower from the text's letters: it adds a
weight for each run of one to three letters. The weights are a logistic regression on the training texts (Cavnar and
Trenkle, "N-Gram-Based Text Categorization", 1994, find languages by such runs). All texts of a language together weigh
as much as the two towers differ in dev's recall.

Recalls are estimated for a gallery of `GALLERY` pictures. Dev has fewer, and a small gallery favours a tower that is
about right everywhere over a tower that knows some names exactly and no others: the first five of 369 pictures are the
first fourteen of a thousand. By R@1, 5 and 10 of 369 the bridged tower was preferred in languages where it was worse.
"""

from __future__ import annotations

import collections
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
from mural_tf.encoders.saved_models import load_saved_model, seal_graph
from mural_tf.evaluation.retrieval import encode_captions, read_pool
from mural_tf.export.saved_model import save_for_inference
from mural_tf.export.serving import IMAGE_ENCODER, TEXT_ENCODER, write_warmup_requests
from mural_tf.metrics import ranking
from mural_tf.training.prepare import texts_of

BUCKETS = 2**16  # of runs of letters, by a hash
RUNS = (1, 2, 3)  # letters
LETTERS = 256  # characters of a text, with the space before it
ROUNDS = 300  # steps of Adagrad, each on all texts
RATE = 0.5  # Adagrad's learning rate
GALLERY = 1_000  # pictures, about as many as are searched later


class TowerChoice(tf.Module):
    """Decides whether each text takes the own tower: string [B] → bool [B].

    Args:
      weights: float32 [BUCKETS + 1], of the runs' buckets, and a bias; positive for the own tower.
    """

    def __init__(self, weights: np.ndarray):
        super().__init__()
        self.weights = tf.Variable(weights, trainable=False, name="weights")

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        buckets = buckets_of(texts)
        sums = tf.reduce_sum(tf.gather(self.weights, buckets), axis=1)
        counts = tf.cast(tf.maximum(buckets.row_lengths(), 1), tf.float32)
        return sums / tf.sqrt(counts) + self.weights[-1] > 0.0


def buckets_of(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns the buckets of the runs of letters in texts, string [B], as int64 [B, (runs)].

    A space marks the beginning and the end of a text; only the first `LETTERS` characters count.
    """
    spaced = tf.strings.join([" ", tf.strings.lower(texts, "utf-8"), " "])
    starts = tf.strings.substr(spaced, 0, LETTERS, unit="UTF8_CHAR")
    letters = tf.strings.unicode_split(starts, "UTF-8")
    runs = tf.strings.ngrams(letters, RUNS, separator="")
    return tf.strings.to_hash_bucket_fast(runs, BUCKETS)


def learn_choice(texts: Sequence[str], languages: Sequence[str], gains: Mapping[str, float]) -> np.ndarray:
    """Returns the weights of `TowerChoice`, float32 [BUCKETS + 1]: a logistic regression by Adagrad.

    A text's logit is the sum of its runs' weights over the root of their number, plus the bias.

    Args:
      texts: training texts.
      languages: the language of each text.
      gains: {language: points of recall on dev by which the own tower is better}; texts in other languages are ignored.
    """
    text_gains = np.array([gains.get(language, 0.0) for language in languages])
    counts = collections.Counter(languages)
    importance = np.abs(text_gains) / np.array([counts[language] for language in languages])
    importance /= max(importance.sum(), 1e-12)  # 0 if the towers are equal in all languages
    buckets = buckets_of(tf.constant([text.encode("utf-8", "replace") for text in texts]))
    bucket_of_run = buckets.flat_values.numpy()
    text_of_run = buckets.value_rowids().numpy()
    scale = 1.0 / np.sqrt(np.maximum(buckets.row_lengths().numpy(), 1))
    weights = np.zeros(BUCKETS + 1)
    squares = np.full(BUCKETS + 1, 1e-12)  # of gradients; not 0, because steps are divided by their roots
    for _ in range(ROUNDS):
        logits = np.bincount(text_of_run, weights[bucket_of_run], len(texts)) * scale + weights[-1]
        probabilities = 1.0 / (1.0 + np.exp(-logits))
        errors = (probabilities - (text_gains > 0)) * importance
        bucket_gradients = np.bincount(bucket_of_run, (errors * scale)[text_of_run], BUCKETS)
        gradients = np.append(bucket_gradients, errors.sum())
        squares += gradients**2
        weights -= RATE * gradients / np.sqrt(squares)
    return weights.astype(np.float32)


class TwoTowers(tf.Module):
    """The text encoder of the export: each text takes one of two towers, string [B] → float32 [B, D].

    Args:
      own, other: text encoders of exports, as SavedModels.
      choice: which texts take the own tower.
    """

    def __init__(self, own, other, choice: TowerChoice):
        super().__init__()
        self.own = own
        self.other = other
        self.choice = choice

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def embed(self, text):
        """Returns {"embedding": float32 [B, D]} of texts, string [B]."""
        takes_own = self.choice(text)
        rows = []
        embeddings = []
        for tower, takes_tower in ((self.own, takes_own), (self.other, tf.logical_not(takes_own))):
            tower_rows = tf.where(takes_tower)[:, 0]
            outputs = tower.signatures["serving_default"](text=tf.gather(text, tower_rows))
            rows.append(tower_rows)
            embeddings.append(outputs["embedding"])
        indices = tf.concat(rows, axis=0)[:, None]
        shape = [tf.size(text, tf.int64), embeddings[0].shape[1]]
        # The rows go back to the order of the texts.
        return {"embedding": tf.scatter_nd(indices, tf.concat(embeddings, axis=0), shape)}


def training_texts(data_dir: str) -> tuple[list[str], list[str]]:
    """Returns the training texts and their languages, each text once per language.

    Raises `UserError` for a folder without training texts.
    """
    pairs = dict.fromkeys(texts_of(data_dir))  # a set that keeps its order
    if not pairs:
        raise UserError(f"{data_dir} has no training texts: the choice between the towers learns from the split train.")
    languages, texts = zip(*pairs)
    return list(texts), list(languages)


def dev_recalls(embedder: Embedder, data_dir: str) -> dict[str, float]:
    """Returns {language: mean recall of dev's images and captions in percent}, as in a gallery of `GALLERY` images.

    It is the mean over both directions and R@1, 5 and 10. For a smaller gallery these ranks are scaled down, to at
    least 1: for example 10 of 1,000 images becomes 4 of 369.
    """
    pool = read_pool(data_dir, "dev")
    numbers = sorted(set().union(*pool.owners.values()))  # of images with captions
    images, readable = embedder.encode_image(pool.read(numbers), on_error="skip", progress=False)
    readable_numbers = np.array(numbers)[readable]
    recalls = {}
    for language in sorted(pool.texts):
        texts, rows = pool.readable_captions(language, readable_numbers)
        if not texts:  # its only images cannot be read
            continue
        gallery, owners = np.unique(rows, return_inverse=True)  # rows of `images` with captions in this language
        embeddings = encode_captions(embedder, texts, language)
        pairs = owners, np.arange(len(texts))
        ranks = ranking.ranks_both_ways(images[gallery], embeddings, pairs)
        recalls[language] = _mean_recall(ranks, len(gallery))
    return recalls


def _mean_recall(ranks: Sequence[np.ndarray], size: int) -> float:
    """Returns the mean recall in percent of the ranks in both directions, in a gallery of `size` images."""
    recalls = []
    for direction_ranks in ranks:
        for cutoff in ranking.CUTOFFS:
            scaled_cutoff = max(1, round(cutoff * size / GALLERY))
            recalls.append(ranking.recall_at(direction_ranks, scaled_cutoff))
    return float(np.mean(recalls))


def export_two_towers(other: str, own: str, data_dir: str, output: str) -> dict[str, dict[str, float]]:
    """Writes an export with both text towers and returns {language: {"own": recall, "other": recall}} on dev.

    Prints the languages whose texts take the own tower.
    The export has no `hub` modules, because a text tower there has one vocabulary.

    Args:
      other: an export of a bridged model.
      own: an export of the model that it was bridged to, with the same image tower.
      data_dir: a data folder with training texts, their languages, and a dev split.
      output: the folder to make.

    Raises:
      UserError: the exports are not of one space, the data lacks training texts or a dev split, or `output` exists.
    """
    own_folder = pathlib.Path(local_copy(own))
    other_folder = pathlib.Path(local_copy(other))
    own_embedder = open_model(own_folder)
    other_embedder = open_model(other_folder)
    picture = np.random.default_rng(0).integers(0, 256, [64, 64, 3], np.uint8)
    difference = np.abs(own_embedder.encode_image([picture]) - other_embedder.encode_image([picture])).max()
    if difference > 1e-3:  # more than rounding
        raise UserError(f"{own} and {other} embed an image {difference:.2g} apart: give a model and its bridge.")
    texts, languages = training_texts(data_dir)
    own_recalls = dev_recalls(own_embedder, data_dir)
    other_recalls = dev_recalls(other_embedder, data_dir)
    recalls = {}
    gains = {}
    for language, recall in own_recalls.items():
        recalls[language] = {"own": recall, "other": other_recalls[language]}
        gains[language] = recall - other_recalls[language]
    choice = TowerChoice(learn_choice(texts, languages, gains))
    output = as_path(output)
    _write_export(output, own_folder, other_folder, choice, recalls)
    own_languages = ", ".join(language for language, gain in gains.items() if gain > 0) or "none"
    print(f"Languages whose texts take the own tower: {own_languages}. Written: {display_name(output)}", flush=True)
    return recalls


def _write_export(
    output: pathlib.Path, own: pathlib.Path, other: pathlib.Path, choice: TowerChoice, recalls: Mapping
) -> None:
    """Writes the export in a folder that appears when it is complete; raises `UserError` if `output` exists."""
    with exclusive_lock(output.parent / f".{output.name}.lock", f"Another process is writing {output}."):
        if output.exists():
            raise UserError(f"{output} exists: name another folder.")
        with whole_folder(output, MODEL_CARD) as partial:
            _write(partial, own, other, choice, recalls)


def _write(folder: pathlib.Path, own: pathlib.Path, other: pathlib.Path, choice: TowerChoice, recalls: Mapping) -> None:
    """Writes into `folder` the export `other` of the bridged model with the text tower of the export `own` added."""
    shutil.copytree(other / IMAGE_ENCODER / _newest(other), folder / IMAGE_ENCODER / "1")
    shutil.copytree(other / "serving", folder / "serving")
    description = newest_description(other)
    for name in ("config.json", "vocabulary.txt"):
        shutil.copy(description / name, folder / name)
    own_tower = load_saved_model(own / TEXT_ENCODER / _newest(own))
    other_tower = load_saved_model(other / TEXT_ENCODER / _newest(other))
    module = TwoTowers(own_tower, other_tower, choice)
    encoder_folder = folder / TEXT_ENCODER / "1"
    save_for_inference(module, encoder_folder, {"serving_default": module.embed})
    write_warmup_requests(encoder_folder, TEXT_ENCODER)
    seal_graph(encoder_folder)
    card = read_json(description / MODEL_CARD) | {"version": 1, "text_towers": recalls}
    (folder / MODEL_CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _newest(export: pathlib.Path) -> str:
    """Returns the name of the folder of an export's newest version."""
    return str(newest_version(export, (IMAGE_ENCODER, TEXT_ENCODER)))
