"""The encoders of a `lite/` as the server runs them: the signatures of an export that take texts and encoded images."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from mural_tf.config import has_images, takes_features
from mural_tf.data.pictures import BadImage
from mural_tf.export.versions import VERSIONS
from mural_tf.lite.model import LiteModel
from mural_tf.loading import LITE, quickest
from mural_tf.search.server.batches import IMAGES, Arrays, ServedModel, Signature
from mural_tf.search.server.rest_json import SIGNATURE, Spec


def lite_folder(export: str | pathlib.Path) -> pathlib.Path | None:
    """Returns the `lite/` that is served of an export, or None: its SavedModels are."""
    folder = pathlib.Path(quickest(export))
    return folder if (folder / LITE).is_file() else None


def served_models(folder: pathlib.Path, model: LiteModel) -> dict[str, ServedModel]:
    """Returns {name: `ServedModel`} of the `model` in a folder, named as an export's."""
    number = folder.parent.name
    version = int(number) if folder.parent.parent.name == VERSIONS and number.isdigit() else 1
    size, functions = model.embedding_size, {"text_encoder": {}}
    for head in ("", *model.heads):
        output = f"{head}_embedding" if head else "embedding"
        functions["text_encoder"][head or SIGNATURE] = "text", output, _texts("text", output, model.text_function(head))
        if model.config.vocabulary.prompt:
            run = _texts("prompted_text", output, model.text_function(head, prompt=""))
            functions["text_encoder"][f"prompted_{head}" if head else "prompted"] = "prompted_text", output, run
    if has_images(model.config.image_tower):
        functions["image_encoder"] = {SIGNATURE: (IMAGES, "embedding", _images(model))}
    takes_images = not takes_features(model.config.image_tower)
    strings = Spec(np.dtype(object), (None,))
    return {
        name: ServedModel(
            name,
            version,
            {key: Signature(run, {given: strings}, takes_images and given == IMAGES)
             for key, (given, _, run) in model_functions.items()},
            {key: _definition(given, output, size) for key, (given, output, _) in model_functions.items()},
        )
        for name, model_functions in functions.items()
    }  # fmt: skip


def _texts(name: str, output: str, embed: Callable[[Sequence[bytes]], np.ndarray]) -> Callable[[Arrays], Arrays]:
    embed([b""])  # prepared before the first request
    return lambda inputs: {output: embed(inputs[name].tolist())}


def _images(model: LiteModel) -> Callable[[Arrays], Arrays]:
    """Images that do not decode become rows of zeros, as in an export."""

    def run(inputs: Arrays) -> Arrays:
        rows = np.zeros([len(inputs[IMAGES]), model.embedding_size], np.float32)
        for row, data in enumerate(inputs[IMAGES]):
            try:
                rows[row] = model.embed_images([model.prepare_image(data)])[0]
            except BadImage:
                continue
        return {"embedding": rows}

    return run


def _definition(given: str, output: str, size: int) -> dict:
    """A signature as TensorFlow Serving describes it at /metadata."""

    def described(dtype: str, shape: Sequence[int]) -> dict:
        sizes = [{"size": str(side), "name": ""} for side in shape]
        return {"dtype": dtype, "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": ""}

    inputs, outputs = {given: described("DT_STRING", [-1])}, {output: described("DT_FLOAT", [-1, size])}
    return {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict", "defaults": {}}
