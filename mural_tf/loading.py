"""`load(path) -> Embedder`: a workdir, an export, its Hub modules, its `lite/`, a folder of weights, `hf://ORG/NAME`.

TensorFlow is imported where it is needed; a `lite/` does not need it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mural_tf.config import base_config
from mural_tf.config_file import load_config
from mural_tf.embedder import Embedder, Encoders
from mural_tf.errors import UserError
from mural_tf.export.versions import description, newest_description, newest_version
from mural_tf.progress import announce
from mural_tf.remote_folders import display_name, local_model, model_place
from mural_tf.trust import trusting

if TYPE_CHECKING:
    import tensorflow as tf

LITE_FOLDER, LITE = "lite", "lite.json"  # in an export, and the file that marks it


def load(
    path: str | os.PathLike[str], checkpoint: str = "result", trust: bool = False, made_states: bool = False
) -> Embedder:
    """Loads a workdir, an export (its newest version), Hub modules, ALIGN or a folder of Sentence-Transformers.

    For a workdir `checkpoint` names the "result", or the "latest" or dev's "best" weights; see docs/training.md.
    Hub modules are an export's `hub/`, or such a folder with image_encoder/, text_preprocessor/ and text_encoder/ from
    elsewhere; images are resized as the export's config.json next to it says, without that file straight to the
    module's size. ALIGN is a folder that Hugging Face's `AlignModel` and its processor save (`kakaobrain/align-base`);
    a folder of Sentence-Transformers (BERT or DistilBERT, with `modules.json`) is a model of texts alone. Weights of
    single towers must be imported into a workdir first: `python -m mural_tf import`. `hf://ORG/NAME` or
    `hf://ORG/NAME@REVISION` names any of these in a repository of the Hugging Face Hub; see docs/checkpoints.md.

    `trust`: whether a workdir's config.json may name classes to import and TF-Hub modules to fetch from any place; see
    docs/reliability.md. `made_states`: whether texts skip a workdir's frozen text tower where training has left their
    states, in float16: vectors differ by some thousandths, which is for an index, not for numbers that are compared.

    Raises `UserError` if `path` is not a model, its parts are missing, damaged or do not fit together, or it names
    code without `trust`.

    >>> embedder = load(folder)
    >>> embedder.encode_text(["a red balloon"]).shape == (1, embedder.embedding_size)
    True
    """
    try:
        embedder = _load(local_model(path), checkpoint, trust, made_states)
    except UserError as error:
        if display_name(error) == str(error):
            raise
        raise UserError(display_name(error)) from None  # by the name that was given, not by the copy's
    embedder.reload = functools.partial(load, os.fspath(path), checkpoint, trust, made_states)
    return embedder


def export_of(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the export that training left in a workdir; any other path as it is."""
    folder = model_place(path)
    is_workdir = not (folder / "text_encoder").is_dir() and (folder / "export" / "text_encoder").is_dir()
    return os.path.join(os.fspath(path), "export") if is_workdir else path


def quickest(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the `lite/` of an export that has one, where LiteRT is installed; else `export_of` the path."""
    path = export_of(path)
    small = newest_description(local_model(path)) / LITE_FOLDER
    is_usable = (small / LITE).is_file() and importlib.util.find_spec("ai_edge_litert") is not None
    return small if is_usable else path


def load_to_ask(
    path: str | os.PathLike[str], check: Callable[[Embedder], None], load: Callable[..., Embedder]
) -> Embedder:
    """Loads, by `load`, the quickest encoders of a model; or a workdir whose export `check` refuses, and says so.

    Raises `UserError` as `load`, or as `check` of the model itself.
    """
    try:
        embedder = load(quickest(path))
        check(embedder)
    except UserError as error:
        if export_of(path) == path:
            raise
        announce(f"{display_name(error)} So the workdir's own model is used.")
        embedder = load(path)
        check(embedder)
    return embedder


def _load(path: pathlib.Path, checkpoint: str, trust: bool, made_states: bool) -> Embedder:
    if not path.is_dir():
        raise UserError(f"The model folder {path} does not exist; give a workdir, an export or hf://ORG/NAME.")
    announce(f"Loading {display_name(path)} …")
    if (path / LITE).is_file():
        return lite_embedder(path)
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            f"{path} needs TensorFlow, which is not installed here: give an export's lite/ (run_export.py --lite), or "
            "install mural-tf in place of mural-tf-lite."
        )
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
    raise UserError(
        f"{path} is neither a workdir (config.json, vocabulary.txt, checkpoints/) nor an export (image_encoder/, "
        "text_encoder/) nor the folder of a checkpoint that docs/checkpoints.md names."
    )


def lite_embedder(folder: pathlib.Path) -> Embedder:
    """Returns the encoders of a `lite/` as an `Embedder`, without TensorFlow; raises `UserError` if it is unusable."""
    from mural_tf.lite.model import LiteModel

    model = LiteModel(folder)
    heads = ("", *model.heads) if model.config.vocabulary.prompt else ()
    further = {head: model.text_function(head) for head in model.heads}
    prompted = {head: model.text_function(head, prompt="") for head in heads}
    encoders = Encoders(model.prepare_image, model.embed_images, model.text_function(), further, prompted)
    embedder = Embedder(encoders, model.embedding_size, model.config, display_name(folder), model.step)
    embedder.original = model.original
    return embedder


def _load_workdir(path: pathlib.Path, checkpoint: str, made_states: bool) -> Embedder:
    from mural_tf.models.frozen import known_texts
    from mural_tf.training.trained_model import load_trained

    model, tokenizer, config, step = load_trained(path, checkpoint)
    made_texts = known_texts(model, config, path) if made_states else None
    return Embedder.from_model(model, tokenizer, config, display_name(path), step, made_texts)


def _load_foreign(path: pathlib.Path, source: str) -> Embedder:
    from mural_tf.pretrained.importers import IMPORTERS, import_weights, starting_config
    from mural_tf.pretrained.origin import origin_of
    from mural_tf.text import tokenizer_of

    if not IMPORTERS[source].method or IMPORTERS[source].vocabulary is None:
        raise UserError(
            f"{path} holds one tower ({source}), which cannot be used alone; import it into a workdir: "
            f"python -m mural_tf import {source} --weights={path} --workdir=…, see docs/checkpoints.md."
        )
    model, config, pieces = import_weights(source, path, starting_config(source))
    config.origin = str(origin_of(source, path))
    return Embedder.from_model(model, tokenizer_of(config, pieces), config, display_name(path))


def _load_export(path: pathlib.Path) -> Embedder:
    from mural_tf import backend  # noqa: F401 - registers the tokenizer's operations
    from mural_tf.data.images import prepare_image
    from mural_tf.encoders.saved_models import check_graph, load_saved_model

    encoders = ("image_encoder", "text_encoder")
    number = newest_version(path, encoders)
    config = load_config(description(path, number) / "config.json")
    check_graph(path / "image_encoder" / str(number))
    text_encoder = load_saved_model(path / "text_encoder" / str(number))
    text_signature = _signature(text_encoder, "text", path / "text_encoder")

    @functools.cache
    def image_encoder() -> Any:  # only when a picture comes: it takes as long to load as texts take to be answered
        return load_saved_model(path / "image_encoder" / str(number))

    def embed_images(images: tf.Tensor) -> tf.Tensor:
        return _signature(image_encoder(), "image_bytes", path / "image_encoder")(image_bytes=images)["embedding"]

    def check_image(data: tf.Tensor) -> tf.Tensor:  # the exported graph does not say so: it gives a row of zeros
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
    embedder = Embedder.from_tensorflow(encoders, size, config, display_name(path))
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
    return Embedder.from_tensorflow(encoders, size, config, display_name(path))


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
