"""The encoders of a `lite/` folder as functions of arrays: pictures and texts in, vectors out."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from mural_lite.config import has_images
from mural_lite.config_file import load_config
from mural_lite.embedder import Reading
from mural_lite.errors import UserError
from mural_lite.files import json_field, read_array, read_json
from mural_lite.fingerprint import Original
from mural_lite.litert.pieces import pieces_of
from mural_lite.litert.runtime import Encoder

FOLDER = "lite"  # in an export
DESCRIPTION = "lite.json"
FORMAT = 1  # raised when older readers would give other vectors
IMAGE_ENCODER = "image_encoder.tflite"
TEXT_ENCODER = "text_encoder.tflite"
PROBES = "model_probes.npy"
REPORT = "report.json"


class LiteModel:
    """The encoders of a `lite/` folder.

    Attributes:
      config: the model's configuration.
      embedding_size: D.
      step: the last step of its training, `None` if unknown.
      heads: the names of further heads of the text encoder.
      original: the probes of the model that the encoders were made of, and how far they may be from it.
      languages: the languages that the model was trained in, as the export names them.

    Raises `UserError` for another format, or files that are missing, cut off or damaged.
    """

    def __init__(self, folder: pathlib.Path):
        path = folder / DESCRIPTION
        values = read_json(path)
        if values.get("format") != FORMAT:
            raise UserError(f"{path} is of format {values.get('format')}, expected {FORMAT}: export the model again.")
        _check_sizes(folder, json_field(values, "bytes", dict, path))
        self.config = load_config(folder / "config.json")
        self.embedding_size = json_field(values, "embedding_size", int, path)
        self.step = values.get("step")
        self.heads = json_field(values, "heads", list[str], path)
        self.languages = json_field(values, "languages", list[str], path)
        probes = np.array(read_array(folder / PROBES), np.float32)
        self.original = Original(probes, float(json_field(values, "bound", float, path)))
        self._pieces = pieces_of(folder, self.config, json_field(values, "text", dict, path))
        self._texts = Encoder(folder / TEXT_ENCODER)
        self._folder = folder
        self._images: Encoder | None = None  # loaded with the first picture

    def prepare_image(self, data: bytes) -> np.ndarray:
        """Returns an encoded picture as `embed_images` takes it; raises `BadImage`."""
        from mural_lite.litert.pixels import prepare  # Pillow, which texts do without

        return prepare(data, self.config.image_tower)

    def embed_images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the embeddings, float32 [B, D], of at least one image from `prepare_image`."""
        if self._images is None and has_images(self.config.image_tower):
            self._images = Encoder(self._folder / IMAGE_ENCODER)
        embeddings = []  # [1, D] each
        for image in images:
            if image.dtype == np.uint8:
                image = image.astype(np.float32) / np.float32(255.0)
            outputs = self._images({"image": image[np.newaxis]})  # a batch of 1, as the encoder was exported
            embeddings.append(outputs["embedding"])
        return np.concatenate(embeddings)

    def text_function(self, head: str = "", prompt: str | None = None) -> Callable[[Sequence[bytes]], np.ndarray]:
        """Returns a function from texts in UTF-8 to their embeddings, float32 [B, D].

        Args:
          head: the name of a further head, "" for the first head.
          prompt: comes before each text; `None`: the configuration's prompt.
        """
        output = f"{head}_embedding" if head else "embedding"
        if prompt is None:
            prompt = self.config.vocabulary.prompt
        prefix = prompt.encode("utf-8")

        def embed_texts(texts: Sequence[bytes]) -> np.ndarray:
            """Returns the embeddings of texts in UTF-8, float32 [B, D], in their order."""
            rows = self._pieces.rows([prefix + text for text in texts])
            embeddings = np.empty([len(rows), self.embedding_size], np.float32)
            # Texts of equal length follow each other, because the encoder prepares itself for each new length.
            for number in np.argsort([len(ids) for ids, _ in rows]):
                outputs = self._texts(self._inputs(*rows[number]))
                embeddings[number] = outputs[output][0]  # of [1, D]
            return embeddings

        return embed_texts

    def reading(self, texts: Sequence[str]) -> Reading | None:
        """Returns the shares of unknown pieces and of cut texts; `None` for a tower of whole words."""
        if self.config.text_tower.name == "words":
            return None
        room = self._pieces.room
        ids = self._pieces.ids([text.encode("utf-8", "replace") for text in texts])  # per text
        cut_texts = sum(len(row) > room for row in ids)
        rows = [row[:room] for row in ids]  # the cut may be within a word
        unknown_pieces = sum(row.count(self._pieces.unknown) for row in rows)
        pieces = sum(map(len, rows))
        return Reading(unknown_pieces / max(1, pieces), cut_texts / max(1, len(ids)), room)

    def _inputs(self, ids: list[int], type_: int) -> dict[str, np.ndarray]:
        """Returns the text encoder's inputs, {name: int32 [1, T]}; T: the number of ids, or the length of full rows."""
        pieces = self._pieces
        length = pieces.max_length if pieces.is_full else len(ids)
        word_ids = np.full([1, length], pieces.pad, np.int32)
        word_ids[0, : len(ids)] = ids
        mask = np.ones([1, length], np.int32)
        return {"input_word_ids": word_ids, "input_mask": mask, "input_type_ids": np.full([1, length], type_, np.int32)}


def _check_sizes(folder: pathlib.Path, sizes: dict[str, int]) -> None:
    """Raises `UserError` for a file that is missing or cut off; `sizes` are {name: bytes} as they were exported."""
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file():
            raise UserError(f"{file} has no bytes, expected {size:,}: copy the folder again.")
        if file.stat().st_size != size:
            raise UserError(f"{file} has {file.stat().st_size:,} bytes, expected {size:,}: copy the folder again.")
