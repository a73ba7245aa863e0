"""Writes a model's `lite/`: both encoders as LiteRT files, each in the kind that was measured to be best.

Kinds are tried in this order, and the first that loses at most `MOST_LOST` points of mean recall in every language is
taken:

    int8                          products, 1x1 convolutions and the table of pieces; a scale per channel
    int8, table in float32        then also the first layer in float32, then also the last layer
    float16                       half the file; computes as float32 does
    float32                       as trained

The text encoder is chosen first. Pictures are measured with that text encoder, so that the loss is the whole model's;
int8 is tried for them only if it is faster, because depthwise convolutions stay float32. All numbers go into
report.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import time
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from mural_lite.byte_words import SEPARATOR, byte_characters
from mural_lite.config import has_images, takes_features
from mural_lite.config_file import save_config
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json, save_array, whole_folder
from mural_lite.fingerprint import TEXTS, TOLERANCE, Fingerprint, encode_probes
from mural_lite.hashes import bytes_hash
from mural_lite.litert import pieces
from mural_lite.litert.few_pieces import PLACES, fields
from mural_lite.litert.model import DESCRIPTION, FOLDER, FORMAT, IMAGE_ENCODER, PROBES, REPORT, TEXT_ENCODER, LiteModel
from mural_lite.models import lite_embedder
from mural_lite.progress import announce
from mural_lite.remote_folders import local_copy
from mural_tf.evaluation.retrieval import measure_retrieval
from mural_tf.export.int8 import layers_of, to_float16, to_int8
from mural_tf.export.lite_encoders import convert_image_encoder, convert_text_encoder
from mural_tf.export.saved_model import in_precision
from mural_tf.models.embedder import embedder_of
from mural_tf.training.trained_model import load_trained

KINDS = ("int8", "float16", "float32")
MOST_LOST = 0.5  # points of mean recall, in any language
FASTER = 0.9  # of float16's time: int8 is tried for pictures only below it
MOST_PICTURES = 1000  # pictures that are compared by cosine
TIMED = 32  # texts, or pictures, that are timed


@dataclasses.dataclass(frozen=True)
class Choice:
    """How an encoder's weights are stored.

    Attributes:
      precision: one of `KINDS`.
      in_float: layers that stay float32 among int8, such as "table".
    """

    precision: str
    in_float: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.in_float:
            return f"{self.precision}, {' and '.join(self.in_float)} in float32"
        return self.precision

    def apply(self, content: bytes) -> bytes:
        """Returns the file of a float32 encoder in this kind."""
        if self.precision == "int8":
            return to_int8(content, self.in_float)
        if self.precision == "float16":
            return to_float16(content)
        return content


def choices(content: bytes, precision: str) -> list[Choice]:
    """Returns the choices to try for a float32 encoder, in order.

    Args:
      content: the encoder's file.
      precision: one of `KINDS`, the only choice then; "": all choices of this file's first lines.
    """
    if precision:
        return [Choice(precision)]
    layers = layers_of(content)
    products = [layer for layer in layers if layer != "table"]
    sensitive = products[:1] + products[-1:]  # the first layer and the last
    if "table" in layers:
        sensitive.insert(0, "table")
    sensitive = tuple(dict.fromkeys(sensitive))  # the first layer may be the last one, too
    int8_choices = [Choice("int8", sensitive[:count]) for count in range(len(sensitive) + 1)]
    return [*int8_choices, Choice("float16"), Choice("float32")]


def export_lite(
    workdir: str | pathlib.Path, export: str | pathlib.Path, checkpoint: str = "result", precision: str = ""
) -> dict:
    """Writes `export/lite/`, which appears when it is complete, and returns its report.

    Args:
      workdir: a trained model. Recall is measured on its data (`data.directory`, `evaluation.split`). Without data, for
        a model without images, and with `precision`, only cosines are measured.
      export: an export's folder.
      checkpoint: "result", "latest" or "best".
      precision: the kind of both encoders, one of `KINDS`; "": the best for each encoder.

    Raises:
      UserError: an unknown kind, an operation that TensorFlow Lite lacks, no package ai-edge-litert, or a workdir that
        cannot be read.
    """
    if precision and precision not in KINDS:
        raise UserError(f"Unknown kind {precision!r} of lite encoders: expected one of {', '.join(KINDS)}.")
    export = as_path(export)
    model, tokenizer, config, step = load_trained(local_copy(workdir), checkpoint)
    model = in_precision(model, config, tokenizer.vocabulary_size)
    original = Remembered(embedder_of(model, tokenizer, config, str(workdir), step))
    settings, vocabulary = tokenizer.for_lite()
    languages = _trained_languages(export)
    announce("Converting to LiteRT …")
    encoders = {TEXT_ENCODER: convert_text_encoder(model, tokenizer.max_length)}
    if has_images(config.image_tower):
        encoders[IMAGE_ENCODER] = convert_image_encoder(model)
    description = {
        "format": FORMAT,
        "step": step,
        "embedding_size": original.embedder.embedding_size,
        "heads": list(model.head_names[1:]),
        "text": settings | {"sha256": hashlib.sha256(vocabulary).hexdigest()},
        "languages": languages,
        "bytes": {},  # filled when all files are written
        "bound": 2.0,  # the largest 1 - cosine: accepts any vectors, until the trial has measured them
    }
    with whole_folder(export / FOLDER, DESCRIPTION) as partial:
        save_config(config, partial / "config.json")
        _write_vocabulary(settings["kind"], vocabulary, partial)
        save_array(partial / PROBES, encode_probes(original.embedder))
        trial = _Trial(partial, description, original, config, encoders, measures_recall=not precision)
        for name, content in encoders.items():
            trial.choose(name, choices(content, precision))
        report = trial.report()
        _write(partial / REPORT, report)
        description["bytes"] = _sizes_of_files(partial)
        description["bound"] = report["bound"]
        _write(partial / DESCRIPTION, description)
    return report


def _sizes_of_files(folder: pathlib.Path) -> dict[str, int]:
    """Returns {name: bytes} of the files that lite.json describes."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != DESCRIPTION}


def _trained_languages(export: pathlib.Path) -> list[str]:
    """Returns the languages that an export's model card names, [] if there is no card."""
    card = export / "model_card.json"
    if not card.is_file():
        return []
    return json_field(read_json(card), "training_data.languages", list[str], card, [])


def _write_vocabulary(layout: str, content: bytes, folder: pathlib.Path) -> None:
    """Writes the files by which texts are divided into pieces.

    Args:
      layout: the kind of vocabulary, as in `pieces`.
      content: the bytes of the vocabulary's file.
      folder: the folder of the lite encoders.
    """
    name = pieces.VOCABULARY if layout in pieces.IN_LINES else pieces.MODEL
    (folder / name).write_bytes(content)
    if layout == "sentence_pieces":
        write_places(content, folder / PLACES)


def _write(path: pathlib.Path, values: dict) -> None:
    """Writes values as JSON."""
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class _Trial:
    """Tries kinds of encoders in a folder that is being written, and leaves the chosen encoders there.

    Args:
      folder: the folder of the lite encoders.
      description: the values of lite.json.
      original: the trained model.
      config: the trained model's configuration.
      encoders: {file's name: float32 encoder}.
      measures_recall: whether recall is measured, on the trained model's data, which takes minutes; otherwise only
        cosines are measured.
    """

    def __init__(
        self, folder: pathlib.Path, description: dict, original: Remembered, config, encoders, measures_recall: bool
    ):
        self._folder = folder
        self._description = description
        self._original = original
        self._config = config
        self._encoders = encoders
        self._measures_recall = measures_recall and has_images(config.image_tower)
        self._rows = {name: [] for name in encoders}  # of the report, see `_measure`
        self._texts = list(TEXTS)  # which are compared
        self._embedders = {}  # {file's name: `Remembered` with the chosen encoder}
        for name, content in encoders.items():
            (folder / name).write_bytes(content)
        self._expected = self._recalls(original, original)  # by language, to which candidates are compared

    def choose(self, name: str, candidates: Sequence[Choice]) -> None:
        """Stores an encoder by the first candidate that loses at most `MOST_LOST` in every language, else the last."""
        if name == IMAGE_ENCODER and len(candidates) > 1 and not self._is_faster(name):
            candidates = [choice for choice in candidates if choice.precision != "int8"]
        for choice in candidates:
            announce(f"Trying {name.removesuffix('.tflite')} in {choice} …")
            row, embedder = self._measure(name, choice)
            self._rows[name].append(row)
            if choice is candidates[-1] or max(row["lost"].values(), default=0.0) <= MOST_LOST:
                row["chosen"] = True
                self._embedders[name] = embedder
                return

    def _is_faster(self, name: str) -> bool:
        """Whether int8 takes less than `FASTER` of float16's time; writes both to the folder to measure them."""
        times = {}
        for precision in ("float16", "int8"):
            self._write_and_open(name, Choice(precision))
            times[precision] = self._milliseconds(name)
        return times["int8"] < FASTER * times["float16"]

    def _write_and_open(self, name: str, choice: Choice) -> Embedder:
        """Writes an encoder in the form of a choice, and returns the embedder of the folder."""
        (self._folder / name).write_bytes(choice.apply(self._encoders[name]))
        _write(self._folder / DESCRIPTION, self._description)
        return lite_embedder(self._folder)

    def _measure(self, name: str, choice: Choice) -> tuple[dict, Remembered]:
        """Writes an encoder in the form of a choice; returns its row of the report, and the folder's embedder.

        The row has cosines with the original's vectors, milliseconds per item, and "lost", {language: points of mean
        recall by which it is worse}. A text encoder is measured with the original's images, an image encoder with the
        text encoder that was chosen before it.
        """
        embedder = Remembered(self._write_and_open(name, choice))
        if name == TEXT_ENCODER:
            recalls = self._recalls(embedder, self._original)
            cosines = self._original.cosines_of_texts(embedder, self._texts)
        else:
            recalls = self._recalls(self._embedders[TEXT_ENCODER], embedder)
            cosines = self._original.cosines_of_images(embedder)
        lost = {}
        for language, recall in recalls.items():
            lost[language] = round(self._expected[language] - recall, 2)
        row = {
            "kind": str(choice),
            "bytes": (self._folder / name).stat().st_size,
            "milliseconds": round(self._milliseconds(name), 2),
            "smallest_cosine": float(cosines.min()),
            "mean_cosine": float(cosines.mean()),
            "compared": len(cosines),
            "lost": lost,
            "chosen": False,
        }
        return row, embedder

    def _recalls(self, texts: Remembered, images: Remembered) -> dict[str, float]:
        """Returns {language: mean recall in percent}, {} if it is not measured.

        Afterwards texts are compared by the captions that the original has encoded, in place of `TEXTS`.

        Args:
          texts, images: the embedders of texts and of pictures.
        """
        if not self._measures_recall:
            return {}
        towers = _Towers(texts, images)
        try:
            evaluation = measure_retrieval(towers, self._config.data.directory, self._config.evaluation.split)
        except UserError as error:
            announce(f"Recall is not measured: {error}")
            return {}
        if self._original.texts:
            self._texts = list(self._original.texts)
        recalls = {}
        for language in evaluation.sizes:
            recalls[language] = evaluation.metrics[f"{evaluation.name}/{language}/mean_recall"]
        return recalls

    def _examples(self, name: str) -> Sequence:
        """Returns about `TIMED` texts in UTF-8, rows of features, or pictures by which an encoder is timed."""
        tower = self._config.image_tower
        if name == TEXT_ENCODER:
            step = max(1, len(self._texts) // TIMED)
            return [text.encode("utf-8") for text in self._texts[::step]]
        if takes_features(tower):
            return np.ones((TIMED, tower.feature_size), np.float32)
        shape = (TIMED, tower.image_size, tower.image_size, 3)
        return np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    def _milliseconds(self, name: str) -> float:
        """Returns the processor milliseconds per text or picture of an encoder in the folder, the least of three."""
        model = LiteModel(self._folder)
        encode = model.text_function() if name == TEXT_ENCODER else model.embed_images
        examples = self._examples(name)
        seconds = []
        for _ in range(3):
            start = time.process_time()
            encode(examples)
            seconds.append(time.process_time() - start)
        return 1000.0 * min(seconds) / len(examples)

    def report(self) -> dict:
        """Returns the values of report.json: {"data", "mean_recall", "encoders": {name: rows}, "bound"}."""
        encoders = {name.removesuffix(".tflite"): rows for name, rows in self._rows.items()}
        data = dict(directory=str(self._config.data.directory), split=self._config.evaluation.split)
        return dict(data=data, mean_recall=self._expected, encoders=encoders, bound=self._bound())

    def _bound(self) -> float:
        """Returns 1 - the lowest cosine between an original and a lite embedding that is still right."""
        distances = [TOLERANCE]
        for rows in self._rows.values():
            chosen_row = next(row for row in rows if row["chosen"])
            distance = 1.0 - chosen_row["smallest_cosine"]
            if chosen_row["compared"] <= len(TEXTS):  # few examples, so that others may be further away
                distance *= 2.0
            distances.append(distance)
        # The probes decide later whether the encoders are the model's, also where no picture could be compared.
        probes = Fingerprint(encode_probes(lite_embedder(self._folder)))
        original_probes = Fingerprint(encode_probes(self._original.embedder))
        distances.append(2.0 * original_probes.distance(probes))  # doubled as a margin
        return max(distances)


class Remembered:
    """An embedder that encodes no text and no picture twice.

    Attributes:
      embedder: encodes new texts and pictures.
      texts: {text: vector}.
      images: {hash of a picture: vector, or `None` if the picture does not decode}.
    """

    def __init__(self, embedder: Embedder):
        self.embedder = embedder
        self.texts = {}
        self.images = {}
        self._compared = {}  # {hash of a picture: picture}, the first `MOST_PICTURES`

    def encode_text(self, texts: Sequence[str], **options) -> np.ndarray:
        """Returns the vectors of texts, float32 [N, D], as `Embedder.encode_text`."""
        new_texts = [text for text in dict.fromkeys(texts) if text not in self.texts]  # each once
        self.texts.update(zip(new_texts, self.embedder.encode_text(new_texts, **options)))
        return np.array([self.texts[text] for text in texts], np.float32)

    def encode_image(self, images: Iterable[bytes], **_) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vectors of readable pictures, float32 [K, D], and these pictures' numbers, int64 [K].

        Options of `Embedder.encode_image` are ignored.
        """
        embeddings = []
        readable = []
        for number, image in enumerate(images):
            embedding = self._embedding(image)
            if embedding is not None:
                embeddings.append(embedding)
                readable.append(number)
        return np.array(embeddings, np.float32), np.array(readable, np.int64)

    def _embedding(self, image: bytes) -> np.ndarray | None:
        """Returns a picture's vector, `None` if the picture does not decode."""
        key = bytes_hash(image)
        if key not in self.images:
            vectors, readable = self.embedder.encode_image([image], on_error="skip")
            self.images[key] = vectors[0] if len(readable) else None
            if len(self._compared) < MOST_PICTURES:
                self._compared[key] = image
        return self.images[key]

    def cosines_of_texts(self, other: Remembered, texts: Sequence[str]) -> np.ndarray:
        """Returns the cosine of each text's two vectors, float32 [N]."""
        return np.sum(self.encode_text(texts) * other.encode_text(texts), axis=1)

    def cosines_of_images(self, other: Remembered) -> np.ndarray:
        """Returns the cosine of each compared picture's two vectors, float32 [N]; one cosine of 1 without pictures."""
        images = list(self._compared.values())
        own_vectors, _ = self.encode_image(images)
        other_vectors, _ = other.encode_image(images)
        if not len(own_vectors):
            return np.ones(1)
        return np.sum(own_vectors * other_vectors, axis=1)


class _Towers:
    """The embedder that `measure_retrieval` takes: one embedder encodes texts, another one pictures."""

    def __init__(self, texts: Remembered, images: Remembered):
        self.encode_text = texts.encode_text
        self.encode_image = images.encode_image
        self.takes_languages = texts.embedder.takes_languages


def describe(report: dict) -> str:
    """Returns report.json's object, {"encoders": {name: [a row for each kind that was tried]}}, as lines of a table."""
    lines = ["encoder        kind                                          MB      ms  cosine>=  most recall lost"]
    for name, rows in report["encoders"].items():
        for row in rows:
            loss = "not measured"
            if row["lost"]:
                language = max(row["lost"], key=row["lost"].get)
                loss = f"{row['lost'][language]:.2f} in {language}"
            numbers = f"{row['bytes'] / 1e6:7.1f} {row['milliseconds']:7.2f}  {row['smallest_cosine']:.4f}"
            line = f"{name:14} {row['kind']:38} {numbers}  {loss}"  # as wide as the heading's columns
            if row["chosen"]:
                line += "  <- chosen"
            lines.append(line)
    return "\n".join(lines)


# Fields of a SentencePiece model and of a piece, and the type of plain text, which is also a piece's default.
PIECE = 1
SELF_TEST = 4
TEXT = 1
SCORE = 2
TYPE = 3
NORMAL = b"\x01"


def write_places(model: bytes, path: pathlib.Path) -> None:
    """Writes where the pieces are in a SentencePiece model's file, and hashes to find pieces by their text.

    few_pieces.py reads a text with only those pieces of a large model that occur in it. The arrays, for N pieces, are
    "hashes", uint32 [N], in their order, and "ids", int32 [N], of the pieces with these hashes; "spans", uint32 [N, 2],
    the begin and end of each piece by its id; "always", int32, ids of pieces that every text needs; "others", uint32
    [K, 2], begin and end of the model's other fields; "longest", the characters of the longest piece.
    """
    spans = []
    others = []
    texts = []
    types = []
    scores = []
    for field, begin, value, end in fields(model, 0, len(model)):
        if field == PIECE:
            spans.append((begin, end))
            parts = {part: model[first:last] for part, _, first, last in fields(model, value, end)}
            texts.append(parts.get(TEXT, b""))
            types.append(parts.get(TYPE, NORMAL))
            scores.append(parts.get(SCORE, bytes(4)))  # little-endian float32
        elif field != SELF_TEST:  # a self-test is of the whole model, and the library would run it
            others.append((begin, end))
    hashes = np.array([zlib.crc32(text) for text in texts], np.uint32)
    order = np.argsort(hashes, kind="stable")
    np.savez(
        path,
        hashes=hashes[order],
        ids=order.astype(np.int32),
        spans=np.array(spans, np.uint32),
        always=np.unique(np.array(_ids_for_all_texts(texts, types, scores), np.int32)),
        others=np.array(others, np.uint32).reshape(-1, 2),
        longest=max(len(text.decode("utf-8", "replace")) for text in texts),
    )


def _ids_for_all_texts(texts: Sequence[bytes], types: Sequence[bytes], scores: Sequence[bytes]) -> list[int]:
    """Returns the ids of the pieces that every text needs: controls, bytes, and the lowest and the highest score.

    `texts`, `types` and `scores` are the fields of all pieces by id, as the model's file has them.
    """
    separator = byte_characters()[SEPARATOR].encode("utf-8")
    ids = []
    scored_ids = []
    for piece_id, (text, type_) in enumerate(zip(texts, types)):
        if type_ == NORMAL:
            scored_ids.append((np.frombuffer(scores[piece_id], "<f4")[0], piece_id))
        elif not text.startswith(separator):  # whole words in bytes are many, and found by their text
            ids.append(piece_id)
    if scored_ids:  # unknown characters are weighed by the lowest and the highest score, see few_pieces.py
        _, lowest = min(scored_ids)
        _, highest = max(scored_ids)
        ids += [lowest, highest]
    return ids
