"""The encoders of a `lite/` as the server runs them: the signatures of an export that take texts and encoded images."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from absl import logging

from mural_tf.config import has_images, takes_features
from mural_tf.data.pictures import BadImage
from mural_tf.errors import UserError
from mural_tf.export.versions import VERSIONS
from mural_tf.lite.model import LiteModel
from mural_tf.loading import LITE, lite_embedder, quickest
from mural_tf.search.server.batches import IMAGES, Arrays, ServedModel, Signature
from mural_tf.search.server.limits import Limits
from mural_tf.search.server.rest_json import SIGNATURE, Spec


class LiteModels:
    """What `models.Versions` gives of SavedModels: the newest version of each encoder, and again when another appears.

    Args:
      export: the folder, which has a `lite/` or is one.
      limits: the server's.

    Attributes:
      models: {name: `ServedModel`}. embedder: the same encoders, for the search page. languages: of the training data.
    """

    def __init__(self, export: str | pathlib.Path, limits: Limits):
        self._export, self._limits = export, limits
        self._load(folder_of(export))

    def _load(self, folder: pathlib.Path) -> None:
        model, number = LiteModel(folder), folder.parent.name
        version = int(number) if folder.parent.parent.name == VERSIONS and number.isdigit() else 1
        self.models = {
            name: ServedModel(name, version, found, {key: _definition(one) for key, one in found.items()}, self._limits)
            for name, found in signatures_of(model).items()
        }
        self.embedder, self.languages, self._folder = lite_embedder(folder, model), model.languages, folder

    async def watch(self, seconds: float) -> None:
        """Looks for another version without end."""
        while True:
            await asyncio.sleep(seconds)
            folder = folder_of(self._export)
            if folder not in (None, self._folder):
                try:
                    await asyncio.get_running_loop().run_in_executor(None, self._load, folder)
                    logging.warning("%s: %s is served now.", self._export, folder)
                except UserError as error:
                    self._folder = folder  # not again
                    logging.error("%s cannot be served, what is loaded goes on: %s", folder, error)


def signatures_of(model: LiteModel) -> dict[str, dict[str, Signature]]:
    """Returns {encoder: {signature: …}}, named as an export's."""
    texts = {}
    for head in ("", *model.heads):
        output = f"{head}_embedding" if head else "embedding"
        texts[head or SIGNATURE] = _texts("text", output, model.text_function(head), model)
        if model.config.vocabulary.prompt:
            name = f"prompted_{head}" if head else "prompted"
            texts[name] = _texts("prompted_text", output, model.text_function(head, prompt=""), model)
    if not has_images(model.config.image_tower):
        return {"text_encoder": texts}
    return {"text_encoder": texts, "image_encoder": {SIGNATURE: _images(model)}}


def _texts(name: str, output: str, embed: Callable[[Sequence[bytes]], np.ndarray], model: LiteModel) -> Signature:
    def run(inputs: Arrays) -> Arrays:
        return {output: embed(inputs[name].tolist())}

    run({name: np.array([b""], object)})  # prepared before the first request
    return Signature(run, {name: Spec(np.dtype(object), (None,))}, {output: (None, model.embedding_size)})


def _images(model: LiteModel) -> Signature:
    """Rows of zeros stand for images that do not decode, as in an export."""

    def run(inputs: Arrays) -> Arrays:
        rows = np.zeros([len(inputs[IMAGES]), model.embedding_size], np.float32)
        for place, data in enumerate(inputs[IMAGES]):
            try:
                rows[place] = model.embed_images([model.prepare_image(data)])[0]
            except BadImage:
                continue
        return {"embedding": rows}

    outputs, takes_images = {"embedding": (None, model.embedding_size)}, not takes_features(model.config.image_tower)
    return Signature(run, {IMAGES: Spec(np.dtype(object), (None,))}, outputs, takes_images)


def _definition(signature: Signature) -> dict:
    """A signature as TensorFlow Serving describes it at /metadata."""

    def described(kind: str, shape: Sequence[int | None]) -> dict:
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in shape]
        return {"dtype": kind, "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": ""}

    return {
        "inputs": {name: described("DT_STRING", spec.shape) for name, spec in signature.inputs.items()},
        "outputs": {name: described("DT_FLOAT", shape) for name, shape in signature.outputs.items()},
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


def folder_of(export: str | pathlib.Path) -> pathlib.Path | None:
    """Returns the `lite/` that is served of an export, or None: its SavedModels are."""
    folder = pathlib.Path(quickest(export))
    return folder if (folder / LITE).is_file() else None
