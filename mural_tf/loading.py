"""The models that need TensorFlow as `Embedder`: a workdir, an export, its Hub modules, a folder of weights.

`mural_lite.open_model`, which users call as `mural_tf.load`, finds `open_folder` by the entry point `mural.models`.
"""

from __future__ import annotations

import functools
import pathlib
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.config_file import load_config
from mural_lite.embedder import Embedder, Encoders
from mural_lite.errors import UserError
from mural_lite.remote_folders import display_name
from mural_lite.trust import trusting
from mural_lite.versions import description, newest_version

if TYPE_CHECKING:
    import tensorflow as tf


def open_folder(path: pathlib.Path, checkpoint: str, trust: bool, made_states: bool) -> Embedder | None:
    """Returns the model in a folder, `None` if it holds no model; raises `UserError` for a model that cannot be used.

    Args:
      path: a workdir, an export, the folder of an export's Hub modules, or a folder of weights from elsewhere.
      checkpoint, trust, made_states: as `mural_lite.open_model` takes them; only a workdir needs them.
    """
    if (path / "text_preprocessor").is_dir():
        return _load_hub_modules(path)
    if (path / "image_encoder").is_dir() and (path / "text_encoder").is_dir():
        return _load_export(path)
    from mural_tf.pretrained.importers import kind_of

    checkpoint_kind = kind_of(path)
    if checkpoint_kind:
        return _load_foreign(path, checkpoint_kind)
    if (path / "config.json").is_file():
        with trusting(trust):
            return _load_workdir(path, checkpoint, made_states)
    return None


def _load_workdir(path: pathlib.Path, checkpoint: str, made_states: bool) -> Embedder:
    """Returns the trained model of a workdir; with `made_states`, texts with stored states skip the text tower."""
    from mural_tf.models.embedder import embedder_of
    from mural_tf.models.frozen import known_texts
    from mural_tf.training.trained_model import load_trained

    model, tokenizer, config, step = load_trained(path, checkpoint)
    made_texts = known_texts(model, config, path) if made_states else None
    return embedder_of(model, tokenizer, config, display_name(path), step, made_texts)


def _load_foreign(path: pathlib.Path, source: str) -> Embedder:
    """Returns the model of weights of the kind `source`, such as "clip"; raises `UserError` for a kind of one tower."""
    from mural_tf.models.embedder import embedder_of
    from mural_tf.pretrained.front_matter import origin_of
    from mural_tf.pretrained.importers import import_weights, importer_of, starting_config
    from mural_tf.text import tokenizer_of

    importer = importer_of(source)
    if not importer.method or importer.vocabulary is None:  # weights of one tower have no method, or no vocabulary
        raise UserError(
            f"{path} holds one tower ({source}), which cannot be used alone; import it into a workdir: "
            f"python -m mural_tf import {source} --weights={path} --workdir=…, see docs/checkpoints.md."
        )
    model, config, pieces = import_weights(source, path, starting_config(source))
    config.origin = str(origin_of(source, path))
    return embedder_of(model, tokenizer_of(config, pieces), config, display_name(path))


def _load_export(path: pathlib.Path) -> Embedder:
    """Returns the model of an export's newest version; its image encoder is loaded when the first picture comes.

    Raises `UserError` for an encoder that cannot be loaded, or that lacks a signature.
    """
    from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
    from mural_tf.data.images import prepare_image
    from mural_tf.encoders.saved_models import check_graph, load_saved_model
    from mural_tf.models.embedder import embedder_of_graphs

    version = newest_version(path, ("image_encoder", "text_encoder"))
    config = load_config(description(path, version) / "config.json")
    check_graph(path / "image_encoder" / str(version))  # now, although it is loaded later
    text_encoder = load_saved_model(path / "text_encoder" / str(version))
    signatures = text_encoder.signatures
    text_signature = _signature(text_encoder, "text", path / "text_encoder")

    @functools.cache
    def image_encoder() -> Any:  # at its first use: many users embed only texts, in less time than this takes
        return load_saved_model(path / "image_encoder" / str(version))

    def embed_images(images: tf.Tensor) -> tf.Tensor:
        return _signature(image_encoder(), "image_bytes", path / "image_encoder")(image_bytes=images)["embedding"]

    def check_image(data: tf.Tensor) -> tf.Tensor:
        # The result is dropped: it raises for a picture that does not decode, for which the export returns zeros.
        prepare_image(data, config.image_tower)
        return data

    def embed_texts(texts: tf.Tensor) -> tf.Tensor:
        return text_signature(text=texts)["embedding"]

    text_heads = {}  # {head: the function of texts}, without the first head
    if "text_text" in signatures:
        text_heads["text_text"] = functools.partial(_only_output, signatures["text_text"], "text")
    prompted = {}  # {head: the function of texts that begin with a prompt}
    for head, name in (("", "prompted"), ("text_text", "prompted_text_text")):  # "": the first head
        if name in signatures:
            prompted[head] = functools.partial(_only_output, signatures[name], "prompted_text")
    encoders = Encoders(check_image, embed_images, embed_texts, text_heads, prompted)
    size = int(text_signature.structured_outputs["embedding"].shape[-1])
    embedder = embedder_of_graphs(encoders, size, config, display_name(path))
    embedder.kept_alive = text_encoder  # signatures need their SavedModel
    return embedder


def _only_output(signature: Any, argument: str, texts: tf.Tensor) -> tf.Tensor:
    """Returns the vectors of texts, [B, D], by a signature that takes them as `argument` and has one output."""
    (embeddings,) = signature(**{argument: texts}).values()
    return embeddings


def _load_hub_modules(path: pathlib.Path) -> Embedder:
    """Returns the model of an export's TF-Hub modules."""
    import tensorflow as tf

    from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
    from mural_tf.data.images import prepare_image
    from mural_tf.encoders.layers import unit_range
    from mural_tf.encoders.saved_models import load_saved_model
    from mural_tf.models.embedder import embedder_of_graphs

    image_encoder = load_saved_model(path / "image_encoder")
    preprocessor = load_saved_model(path / "text_preprocessor")
    text_encoder = load_saved_model(path / "text_encoder")
    config = _hub_config(path, _input_size(image_encoder, path / "image_encoder"))

    def embed_texts(texts: tf.Tensor) -> tf.Tensor:
        outputs = text_encoder(preprocessor(texts), training=False)
        return outputs["default"]

    def embed_images(images: tf.Tensor) -> tf.Tensor:
        return image_encoder(unit_range(images), training=False)

    encoders = Encoders(lambda data: prepare_image(data, config.image_tower), embed_images, embed_texts)
    embedding_size = int(embed_texts(tf.constant([""])).shape[-1])
    return embedder_of_graphs(encoders, embedding_size, config, display_name(path))


def _hub_config(path: pathlib.Path, image_size: int) -> ConfigDict:
    """Returns the configuration of the export whose Hub modules are in `path`; the defaults if it has no `config.json`.

    Images are prepared as the image module's own settings say, and to its `image_size` in pixels. Raises `UserError`
    for settings that are damaged or out of their ranges.
    """
    from mural_tf.encoders.towers import check_ranges
    from mural_tf.export.hub_modules import stored_preparation

    config = base_config()
    config.image_tower.resize = image_size  # for modules without a configuration and settings: no border is cut off
    if (path.parent / "config.json").is_file():
        config = load_config(path.parent / "config.json")
    config.image_tower.update({**stored_preparation(path / "image_encoder"), "image_size": image_size})
    check_ranges(config.image_tower, "image_tower")
    return config


def _input_size(image_encoder: Any, folder: pathlib.Path) -> int:
    """Returns the side of the images that a Hub module takes; raises `UserError` if it is not fixed."""
    try:  # the first [0] is the positional arguments, the second the images; `int(None)` is a `TypeError`
        return int(image_encoder.__call__.concrete_functions[0].structured_input_signature[0][0].shape[1])
    except (AttributeError, IndexError, TypeError):
        raise UserError(f"{folder} is not a TF-Hub module that takes images [B, S, S, 3] of one size.") from None


def _signature(saved_model: Any, name: str, folder: pathlib.Path) -> Any:
    """Returns the signature with the input `name` and the output "embedding"; raises `UserError` if it is missing."""
    for signature in saved_model.signatures.values():
        _, named_inputs = signature.structured_input_signature
        if name in named_inputs and "embedding" in signature.structured_outputs:
            return signature
    raise UserError(f"The SavedModel in {folder} has no signature from {name!r} to 'embedding'.")
