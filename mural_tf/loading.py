"""The models that need TensorFlow as `Embedder`: a workdir, an export, its Hub modules, a folder of weights.

`mural_lite.open_model`, which users call as `mural_tf.load`, finds `open_folder` by the entry point `mural.models`.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.config_file import load_config
from mural_lite.embedder import Embedder, Embeddings, Encoder, Encoders
from mural_lite.errors import UserError
from mural_lite.pictures import BadImage
from mural_lite.remote_folders import display_name
from mural_lite.trust import trusting
from mural_lite.versions import description, newest_version

if TYPE_CHECKING:
    import tensorflow as tf


def open_folder(path: pathlib.Path, checkpoint: str, trust: bool, made_states: bool) -> Embedder | None:
    """Returns the model in a folder, `None` if it is not one. The arguments are as in `mural_lite.open_model`."""
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


def embedder_of(
    model: Any,
    tokenizer: Callable[..., Any],
    config: ConfigDict,
    path: str = "",
    step: int | None = None,
    made_texts: Any = None,
) -> Embedder:
    """Wraps a model in memory; later changes of its weights show in later calls.

    `model`: a `DualEncoder`, or another object with its `embed_images`, `embed_texts` and `embedding_size`.
    `made_texts`: a `models.states.KnownStates`, texts that skip the text tower.
    """
    import tensorflow as tf

    from mural_tf.data import images

    tower, prepared = config.image_tower, images.prepared_spec(config.image_tower)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.string)])
    def prepare_image(data: tf.Tensor) -> tf.Tensor:
        return images.prepare_image(data, tower)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, *prepared.shape], prepared.dtype)])
    def embed_images(batch: tf.Tensor) -> tf.Tensor:
        return model.embed_images(batch)

    bare = tokenizer.with_prompt("") if config.vocabulary.prompt else tokenizer

    def with_head(*head: str, tokenizer: Any = tokenizer) -> Any:
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        def embed_texts(texts: tf.Tensor) -> tf.Tensor:
            return model.embed_texts(tokenizer(texts, pad="longest"), *head)

        return embed_texts

    embed_texts = with_head()
    names = getattr(model, "head_names", ())
    heads = [head for head in names if head != "image_text"]
    prompted = {"": with_head(tokenizer=bare), **{head: with_head(head, tokenizer=bare) for head in heads}}
    further = {head: with_head(head) for head in heads}
    if made_texts is not None:
        embed_texts = made_texts.first(embed_texts, names[0])
        further = {head: made_texts.first(embed, head) for head, embed in further.items()}
    prompted = prompted if config.vocabulary.prompt else {}
    encoders = Encoders(prepare_image, embed_images, embed_texts, further, prompted)
    return _embedder_of_graphs(encoders, model.embedding_size, config, path, step)


def _embedder_of_graphs(
    encoders: Encoders, embedding_size: int, config: ConfigDict, path: str = "", step: int | None = None
) -> Embedder:
    """Wraps functions of tensors: the constructor's, of a string scalar, of images [B, …], of strings [B]."""
    import tensorflow as tf

    def prepare(data: bytes) -> tf.Tensor:
        try:
            return encoders.prepare_image(tf.constant(data))
        except tf.errors.OpError:
            raise BadImage("it is damaged and does not decode") from None

    def on_lists(encode: Callable[[tf.Tensor], tf.Tensor], join: Callable[..., tf.Tensor] = tf.constant) -> Encoder:
        def encode_list(values: Sequence[Any]) -> Embeddings:
            embeddings: Embeddings = encode(join(values)).numpy()
            return embeddings

        return encode_list

    on_images = on_lists(encoders.embed_images, tf.stack)
    further = {head: on_lists(encode) for head, encode in encoders.text_heads.items()}
    prompted = {head: on_lists(encode) for head, encode in encoders.prompted.items()}
    taking_lists = Encoders(prepare, on_images, on_lists(encoders.embed_texts), further, prompted)
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return Embedder(taking_lists, embedding_size, config, path, step, threads)


def _load_workdir(path: pathlib.Path, checkpoint: str, made_states: bool) -> Embedder:
    from mural_tf.models.frozen import known_texts
    from mural_tf.training.trained_model import load_trained

    model, tokenizer, config, step = load_trained(path, checkpoint)
    made_texts = known_texts(model, config, path) if made_states else None
    return embedder_of(model, tokenizer, config, display_name(path), step, made_texts)


def _load_foreign(path: pathlib.Path, source: str) -> Embedder:
    from mural_tf.pretrained.importers import import_weights, importers, starting_config
    from mural_tf.pretrained.origin import origin_of
    from mural_tf.text import tokenizer_of

    if not importers()[source].method or importers()[source].vocabulary is None:
        raise UserError(
            f"{path} holds one tower ({source}), which cannot be used alone; import it into a workdir: "
            f"python -m mural_tf import {source} --weights={path} --workdir=…, see docs/checkpoints.md."
        )
    model, config, pieces = import_weights(source, path, starting_config(source))
    config.origin = str(origin_of(source, path))
    return embedder_of(model, tokenizer_of(config, pieces), config, display_name(path))


def _load_export(path: pathlib.Path) -> Embedder:
    """Returns the newest version of an export; its image encoder is loaded when the first picture comes."""
    from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
    from mural_tf.data.images import prepare_image
    from mural_tf.encoders.saved_models import check_graph, load_saved_model

    version = newest_version(path, ("image_encoder", "text_encoder"))
    config = load_config(description(path, version) / "config.json")
    check_graph(path / "image_encoder" / str(version))
    text_encoder = load_saved_model(path / "text_encoder" / str(version))
    text_signature = _signature(text_encoder, "text", path / "text_encoder")

    @functools.cache
    def image_encoder() -> Any:  # many ask with texts only, whose answers take no longer than loading this
        return load_saved_model(path / "image_encoder" / str(version))

    def embed_images(images: tf.Tensor) -> tf.Tensor:
        return _signature(image_encoder(), "image_bytes", path / "image_encoder")(image_bytes=images)["embedding"]

    def check_image(data: tf.Tensor) -> tf.Tensor:
        # Fails for a picture that does not decode, for which the exported graph returns a row of zeros.
        prepare_image(data, config.image_tower)
        return data

    heads = {}
    if "text_text" in text_encoder.signatures:
        for_texts = text_encoder.signatures["text_text"]
        heads["text_text"] = lambda texts: for_texts(text=texts)["text_text_embedding"]

    prompted = {}
    for head, name in (("", "prompted"), ("text_text", "prompted_text_text")):
        if name in text_encoder.signatures:
            prompted[head] = _with_prompt_of_its_own(text_encoder.signatures[name])

    def embed_texts(texts: tf.Tensor) -> tf.Tensor:
        return text_signature(text=texts)["embedding"]

    encoders = Encoders(check_image, embed_images, embed_texts, heads, prompted)
    size = int(text_signature.structured_outputs["embedding"].shape[-1])
    embedder = _embedder_of_graphs(encoders, size, config, display_name(path))
    embedder.kept_alive = text_encoder
    return embedder


def _load_hub_modules(path: pathlib.Path) -> Embedder:
    import tensorflow as tf

    from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
    from mural_tf.data.images import prepare_image
    from mural_tf.encoders.layers import unit_range
    from mural_tf.encoders.saved_models import load_saved_model
    from mural_tf.encoders.towers import check_ranges
    from mural_tf.export.hub_modules import stored_preparation

    names = ("image_encoder", "text_preprocessor", "text_encoder")
    image_encoder, preprocessor, text_encoder = (load_saved_model(path / name) for name in names)
    config, size = base_config(), _input_size(image_encoder, path / names[0])
    config.image_tower.resize = size
    if (path.parent / "config.json").is_file():
        config = load_config(path.parent / "config.json")
    config.image_tower.update({**stored_preparation(path / names[0]), "image_size": size})
    check_ranges(config.image_tower, "image_tower")

    def embed_texts(texts: tf.Tensor) -> tf.Tensor:
        outputs = text_encoder(preprocessor(texts), training=False)
        return outputs["default"]

    encoders = Encoders(
        lambda data: prepare_image(data, config.image_tower),
        lambda images: image_encoder(unit_range(images), training=False),
        embed_texts,
    )
    size = int(embed_texts(tf.constant([""])).shape[-1])
    return _embedder_of_graphs(encoders, size, config, display_name(path))


def _input_size(image_encoder: Any, folder: pathlib.Path) -> int:
    """The side of the images that a Hub module takes."""
    try:
        return int(image_encoder.__call__.concrete_functions[0].structured_input_signature[0][0].shape[1])
    except (AttributeError, IndexError, TypeError):
        raise UserError(f"{folder} is not a TF-Hub module that takes images [B, S, S, 3] of one size.") from None


def _with_prompt_of_its_own(signature: Any) -> Any:
    """The function texts -> vectors of a signature that puts no prompt before them."""
    return lambda texts: next(iter(signature(prompted_text=texts).values()))


def _signature(saved_model: Any, name: str, folder: pathlib.Path) -> Any:
    """Returns the signature that takes `name` and gives `embedding`."""
    for signature in saved_model.signatures.values():
        if name in signature.structured_input_signature[1] and "embedding" in signature.structured_outputs:
            return signature
    raise UserError(f"The SavedModel in {folder} has no signature from {name!r} to 'embedding'.")
