"""Writes a model's `lite/`: both encoders as LiteRT files, each in the kind that was measured to be best.

Kinds are tried in this order, and a kind that loses more than `MOST_LOST` points of mean recall in any language is
passed over:

    int8                          products, 1x1 convolutions and the table of pieces; a scale per channel
    int8, table in float32        and then the first layer, and the last one
    float16                       half the file; computes as float32 does
    float32                       as trained

Texts come first. Pictures follow together with the texts' choice, so that the loss is the whole model's; int8 is
tried there only if it is faster, since depthwise convolutions stay float32. All numbers go into report.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mural_lite.config import has_images, takes_features
from mural_lite.config_file import save_config
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json, save_array, whole_folder
from mural_lite.fingerprint import TEXTS, TOLERANCE, encode_probes
from mural_lite.hashes import bytes_hash
from mural_lite.litert import pieces
from mural_lite.litert.few_pieces import PLACES, fields
from mural_lite.litert.model import (
    DESCRIPTION,
    FOLDER,
    FORMAT,
    IMAGE_ENCODER,
    PROBES,
    REPORT,
    TEXT_ENCODER,
    LiteModel,
)
from mural_lite.models import lite_embedder
from mural_lite.progress import announce
from mural_lite.remote_folders import local_copy
from mural_tf.evaluation.retrieval import measure_retrieval
from mural_tf.export.int8 import layers_of, to_float16, to_int8
from mural_tf.export.lite_encoders import convert_image_encoder, convert_text_encoder
from mural_tf.export.saved_model import in_precision
from mural_tf.loading import embedder_of
from mural_tf.training.trained_model import load_trained

KINDS = ("int8", "float16", "float32")
MOST_LOST = 0.5  # points of mean recall, in any language
FASTER = 0.9  # of float16's time: int8 is tried for pictures only below it
MOST_PICTURES = 1000  # whose cosines are compared
TIMED = 32  # texts, or pictures, that are timed


@dataclasses.dataclass(frozen=True)
class Choice:
    """How an encoder's weights are stored: the kind, and the layers that stay float32 among int8."""

    precision: str
    in_float: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.precision}, {' and '.join(self.in_float)} in float32" if self.in_float else self.precision

    def apply(self, content: bytes) -> bytes:
        """Returns the file of a float32 encoder in this kind."""
        if self.precision == "int8":
            return to_int8(content, self.in_float)
        return to_float16(content) if self.precision == "float16" else content


def choices(content: bytes, precision: str) -> list[Choice]:
    """Returns what to try of a float32 encoder, in order; `precision`: only this one, "" for all."""
    if precision:
        return [Choice(precision)]
    layers = layers_of(content)
    products = [layer for layer in layers if layer != "table"]
    costly = [layer for layer in ("table", *products[:1], *products[-1:]) if layer in layers]
    kept = [tuple(dict.fromkeys(costly[:count])) for count in range(len(costly) + 1)]
    return [*(Choice("int8", layers) for layers in dict.fromkeys(kept)), Choice("float16"), Choice("float32")]


def export_lite(
    workdir: str | pathlib.Path,
    export: str | pathlib.Path,
    checkpoint: str = "result",
    precision: str = "",
) -> dict:
    """Writes `export/lite/`, which appears when it is complete, and returns its report.

    Args:
      workdir: whose checkpoint; its data (`data.directory`, `evaluation.split`) measure the recall. Without data, and
        for a model of texts alone, only cosines are measured.
      export: an export's folder.
      checkpoint: "result", "latest" or "best".
      precision: of both encoders, one of `KINDS`; "": the best of them.

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
    settings, content = tokenizer.for_lite()
    card = export / "model_card.json"
    trained_in = json_field(read_json(card), "training_data.languages", list[str], card, []) if card.is_file() else []
    announce("Converting to LiteRT …")
    in_float = {TEXT_ENCODER: convert_text_encoder(model, tokenizer.max_length)}
    if has_images(config.image_tower):
        in_float[IMAGE_ENCODER] = convert_image_encoder(model)
    heads = list(model.head_names[1:])
    del model
    with whole_folder(export / FOLDER, DESCRIPTION) as partial:
        save_config(config, partial / "config.json")
        in_lines = settings["kind"] in pieces.IN_LINES
        (partial / (pieces.VOCABULARY if in_lines else pieces.MODEL)).write_bytes(content)
        if settings["kind"] == "sentence_pieces":
            write_places(content, partial / PLACES)
        settings["sha256"] = hashlib.sha256(content).hexdigest()
        save_array(partial / PROBES, encode_probes(original.embedder))
        description = dict(format=FORMAT, step=step, embedding_size=original.embedder.embedding_size, heads=heads)
        description |= dict(text=settings, languages=trained_in, bytes={}, bound=2.0)
        trial = _Trial(partial, description, original, config, in_float)
        for name in in_float:
            trial.choose(name, choices(in_float[name], precision))
        report = trial.report()
        _write(partial / REPORT, report)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir()) if path.name != DESCRIPTION}
        description |= dict(bytes=sizes, bound=trial.bound)
        _write(partial / DESCRIPTION, description)
    return report


def _write(path: pathlib.Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class _Trial:
    """Tries kinds in a folder that is being written; at the end the chosen encoders lie there."""

    def __init__(self, folder: pathlib.Path, description: dict, original: Remembered, config, in_float):
        self._folder, self._description, self._original = folder, description, original
        self._config, self._in_float = config, in_float
        self._tried: dict[str, list[dict]] = {name: [] for name in in_float}
        self._texts: list[str] = list(TEXTS)
        self._embedders: dict[str, Remembered] = {}
        self.bound = TOLERANCE
        for name, content in in_float.items():
            (folder / name).write_bytes(content)
        self._expected = self._recalls(original, original)

    def choose(self, name: str, candidates: Sequence[Choice]) -> None:
        """Leaves the first of the candidates for an encoder that loses at most `MOST_LOST` in every language."""
        if name == IMAGE_ENCODER and len(candidates) > 1 and not self._is_faster(name):
            candidates = [choice for choice in candidates if choice.precision != "int8"]
        for choice in candidates:
            announce(f"Trying {name.removesuffix('.tflite')} in {choice} …")
            row, embedder = self._try(name, choice)
            self._tried[name].append(row)
            if choice is candidates[-1] or max(row["lost"].values(), default=0.0) <= MOST_LOST:
                row["chosen"], self._embedders[name] = True, embedder
                return

    def _is_faster(self, name: str) -> bool:
        times = {}
        for precision in ("float16", "int8"):
            self._opened(name, Choice(precision))
            times[precision] = self._milliseconds(name)
        return times["int8"] < FASTER * times["float16"]

    def _opened(self, name: str, choice: Choice) -> Embedder:
        (self._folder / name).write_bytes(choice.apply(self._in_float[name]))
        _write(self._folder / DESCRIPTION, self._description)
        return lite_embedder(self._folder)

    def _try(self, name: str, choice: Choice) -> tuple[dict, Remembered]:
        embedder = Remembered(self._opened(name, choice))
        if name == TEXT_ENCODER:
            recalls = self._recalls(embedder, self._original)
            cosines = self._original.cosines_of_texts(embedder, self._texts)
        else:
            recalls = self._recalls(self._embedders[TEXT_ENCODER], embedder)
            cosines = self._original.cosines_of_images(embedder)
        lost = {language: round(self._expected[language] - recall, 2) for language, recall in recalls.items()}
        row = dict(kind=str(choice), bytes=(self._folder / name).stat().st_size)
        row |= dict(milliseconds=round(self._milliseconds(name), 2))
        row |= dict(smallest_cosine=float(cosines.min()), mean_cosine=float(cosines.mean()), compared=len(cosines))
        return row | dict(lost=lost, chosen=False), embedder

    def _recalls(self, texts: Remembered, images: Remembered) -> dict[str, float]:
        """The mean recall of each language, in percent; {} where nothing can be measured."""
        both = _Both(texts, images)
        if not has_images(self._config.image_tower):
            return {}
        try:
            metrics = measure_retrieval(both, self._config.data.directory, self._config.evaluation.split).metrics
        except UserError as error:
            announce(f"Recall is not measured: {error}")
            return {}
        self._texts = list(self._original.texts) or self._texts
        rows = (key.split("/") for key in metrics)
        return {
            row[1]: metrics["/".join(row)] for row in rows
            if row[-1] == "mean_recall" and len(row) == 3 and f"retrieval/{row[1]}/text_to_image/recall@1" in metrics
        }  # fmt: skip

    def _milliseconds(self, name: str) -> float:
        """Processor milliseconds per text or picture by the encoder that lies in the folder, least of three rounds."""
        model, tower = LiteModel(self._folder), self._config.image_tower
        if name == TEXT_ENCODER:
            run: Callable = model.text_function()
            examples: list = [text.encode("utf-8") for text in self._texts[:: max(1, len(self._texts) // TIMED)]]
        elif takes_features(tower):
            run, examples = model.embed_images, list(np.ones((TIMED, tower.feature_size), np.float32))
        else:
            shape = (TIMED, tower.image_size, tower.image_size, 3)
            run, examples = model.embed_images, list(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
        seconds = []
        for _ in range(3):
            start = time.process_time()
            run(examples)
            seconds.append(time.process_time() - start)
        return 1000.0 * min(seconds) / len(examples)

    def report(self) -> dict:
        """Returns report.json, and sets `bound`."""
        for rows in self._tried.values():
            chosen = next(row for row in rows if row["chosen"])
            few = chosen["compared"] <= len(TEXTS)
            self.bound = max(self.bound, (2.0 if few else 1.0) * (1.0 - chosen["smallest_cosine"]))
        encoders = {name.removesuffix(".tflite"): rows for name, rows in self._tried.items()}
        data = dict(directory=str(self._config.data.directory), split=self._config.evaluation.split)
        return dict(data=data, mean_recall=self._expected, encoders=encoders, bound=self.bound)


class Remembered:
    """An embedder that encodes no text and no picture twice.

    Attributes:
      embedder: that encodes. texts: text -> vector. images: hash of a picture -> vector, None where it does not decode.
    """

    def __init__(self, embedder: Embedder):
        self.embedder = embedder
        self.texts: dict[str, np.ndarray] = {}
        self.images: dict[int, np.ndarray | None] = {}
        self._encoded: dict[int, bytes] = {}

    def encode_text(self, texts: Sequence[str], **options) -> np.ndarray:
        """As `Embedder` has it."""
        unknown = [text for text in dict.fromkeys(texts) if text not in self.texts]
        self.texts.update(zip(unknown, self.embedder.encode_text(unknown, **options)))
        return np.array([self.texts[text] for text in texts], np.float32)

    def encode_image(self, images: Iterable[bytes], **_) -> tuple[np.ndarray, np.ndarray]:
        """As `Embedder` has it, with `on_error` "skip"."""
        keys = list(self._keys(images))
        kept = [number for number, key in enumerate(keys) if self.images[key] is not None]
        return np.array([self.images[keys[number]] for number in kept], np.float32), np.array(kept, np.int64)

    def _keys(self, images: Iterable[bytes]) -> Iterator[int]:
        for image in images:
            key = bytes_hash(image)
            if key not in self.images:
                vectors, kept = self.embedder.encode_image([image], on_error="skip")
                self.images[key] = vectors[0] if len(kept) else None
                if len(self._encoded) < MOST_PICTURES:
                    self._encoded[key] = image
            yield key

    def cosines_of_texts(self, other: Remembered, texts: Sequence[str]) -> np.ndarray:
        """Returns the cosine of each text's two vectors, [N]."""
        return np.sum(self.encode_text(texts) * other.encode_text(texts), axis=1)

    def cosines_of_images(self, other: Remembered) -> np.ndarray:
        """Returns the same of all pictures that were met."""
        images = list(self._encoded.values())
        (ours, _), (theirs, _) = self.encode_image(images), other.encode_image(images)
        return np.sum(ours * theirs, axis=1) if len(ours) else np.ones(1)


class _Both:
    """What `measure_retrieval` asks: texts by one embedder, pictures by another."""

    def __init__(self, texts: Remembered, images: Remembered):
        self.encode_text, self.encode_image = texts.encode_text, images.encode_image
        self.takes_languages = texts.embedder.takes_languages


def describe(report: dict) -> str:
    """Returns the report as a table."""
    lines = ["encoder        kind                                          MB      ms  cosine>=  most recall lost"]
    for name, rows in report["encoders"].items():
        for row in rows:
            language, most = max(row["lost"].items(), key=lambda pair: pair[1], default=("not measured", None))
            lost = f"{most:.2f} in {language}" if most is not None else language
            numbers = f"{row['bytes'] / 1e6:7.1f} {row['milliseconds']:7.2f}  {row['smallest_cosine']:.4f}  {lost}"
            lines.append(f"{name:14} {row['kind']:38} {numbers}{'  <- chosen' if row['chosen'] else ''}")
    return "\n".join(lines)


# Fields of a SentencePiece model and of a piece, and the type of plain text, which is also a piece's default.
PIECE, SELF_TEST = 1, 4
TEXT, SCORE, TYPE = 1, 2, 3
NORMAL = 1


def write_places(model: bytes, path: pathlib.Path) -> None:
    """Writes the positions of the pieces in a SentencePiece model's file, and hashes to find them by their text."""
    spans: list[tuple[int, int]] = []
    texts: list[bytes] = []
    scores: list[tuple[float, int]] = []
    always: list[int] = []
    others: list[tuple[int, int]] = []
    for field, begin, value, end in fields(model, 0, len(model)):
        if field == PIECE:
            parts = {name: model[first:last] for name, _, first, last in fields(model, value, end)}
            if parts.get(TYPE, bytes([NORMAL])) == bytes([NORMAL]):
                scores.append((np.frombuffer(parts.get(SCORE, bytes(4)), "<f4")[0], len(spans)))
            else:
                always.append(len(spans))
            spans.append((begin, end))
            texts.append(parts.get(TEXT, b""))
        elif field != SELF_TEST:  # a self-test is of the whole model, and the library would run it
            others.append((begin, end))
    if scores:
        always += [min(scores)[1], max(scores)[1]]
    hashes = np.array(list(map(zlib.crc32, texts)), np.uint32)
    order = np.argsort(hashes, kind="stable")
    np.savez(
        path,
        hashes=hashes[order],
        ids=order.astype(np.int32),
        spans=np.array(spans, np.uint32),
        always=np.unique(np.array(always, np.int32)),
        others=np.array(others, np.uint32).reshape(-1, 2),
        longest=max(len(text.decode("utf-8", "replace")) for text in texts),
    )
