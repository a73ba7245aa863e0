"""`open_model(path) -> Embedder`: LiteRT's files here, every other model by the package that is registered for it.

TensorFlow is imported by that package, where it is needed; a `lite/` does not need it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
from collections.abc import Callable

from mural_lite.embedder import Embedder, Encoders
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json
from mural_lite.progress import announce
from mural_lite.registry import registered
from mural_lite.remote_folders import display_name, local_model, model_place
from mural_lite.versions import newest_description

LITE_FOLDER = "lite"  # in an export
LITE = "lite.json"  # the file that marks it


def open_model(
    path: str | os.PathLike[str], checkpoint: str = "result", trust: bool = False, made_states: bool = False
) -> Embedder:
    """Returns the `Embedder` of a trained model.

    Args:
      path: a workdir, an export (its newest version is loaded), an export's `hub/` or a similar folder of TF-Hub
        modules, a folder that Hugging Face's `AlignModel` saves, or one of Sentence-Transformers, which embeds only
        texts; or any of these on the Hugging Face Hub, hf://ORG/NAME or hf://ORG/NAME@REVISION. Weights of single
        towers must be imported into a workdir first. See docs/checkpoints.md.
      checkpoint: for a workdir, the "result", "latest" or dev's "best" weights; see docs/training.md.
      trust: whether a workdir's config.json may name classes to import and TF-Hub modules to fetch from any place; see
        docs/reliability.md.
      made_states: whether texts skip a workdir's frozen text tower if training left their states, in float16: vectors
        differ by some thousandths, which is good enough for an index, but not for numbers that are compared.

    Raises `UserError` if `path` is not a model, its parts are missing, damaged or of different models, or, without
    `trust`, name code of others.

    >>> embedder = open_model(folder)
    >>> embedder.encode_text(["a red balloon"]).shape == (1, embedder.embedding_size)
    True
    """
    try:
        embedder = _open_folder(local_model(path), checkpoint, trust, made_states)
    except UserError as error:
        if display_name(error) == str(error):
            raise
        raise UserError(display_name(error)) from None  # with the name that was given, not the copy's
    embedder.reload = functools.partial(open_model, os.fspath(path), checkpoint, trust, made_states)
    return embedder


def _open_folder(path: pathlib.Path, checkpoint: str, trust: bool, made_states: bool) -> Embedder:
    """Returns the `Embedder` of a folder of this machine; arguments and errors as in `open_model`."""
    if path.is_file():
        raise UserError(f"The model {path} is a file; give the folder of a workdir or an export, or hf://ORG/NAME.")
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
    if not registered("mural.models"):
        raise UserError(f"No installed package opens {path}: install mural-tf; in a checkout again, pip install -e .")
    for opener in registered("mural.models").values():
        embedder = opener.load()(path, checkpoint, trust, made_states)
        if embedder is not None:
            return embedder
    raise UserError(
        f"{path} is neither a workdir (config.json, vocabulary.txt, checkpoints/) nor an export (image_encoder/, "
        "text_encoder/) nor the folder of a checkpoint that docs/checkpoints.md names."
    )


def export_of(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the path of the export that training left in a workdir, and any other path unchanged."""
    folder = model_place(path)
    is_export = (folder / "text_encoder").is_dir()
    if not is_export and (folder / "export" / "text_encoder").is_dir():
        return os.path.join(os.fspath(path), "export")
    return path


def quickest(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Returns the path of a model's `lite/` if it exists and LiteRT is installed; otherwise `export_of` the path."""
    path = export_of(path)
    lite = newest_description(local_model(path)) / LITE_FOLDER
    if (lite / LITE).is_file() and importlib.util.find_spec("ai_edge_litert") is not None:
        return lite
    return path


def encoder_of(path: str | os.PathLike[str]) -> str:
    """Returns a name for the encoders in a `lite/`, "LiteRT BYTES+BYTES" by their sizes; "" for a model of TensorFlow.

    Encoders of different names give different vectors. The cosine of an export's and its `lite/`'s vectors of a picture
    is 0.9993 in the mean of photographs, at worst 0.987 in float32 and 0.96 in int8.
    """
    description = as_path(path) / LITE
    if not description.is_file():
        return ""
    sizes = json_field(read_json(description), "bytes", dict, description)
    encoder_sizes = [str(size) for name, size in sorted(sizes.items()) if name.endswith(".tflite")]
    return f"LiteRT {'+'.join(encoder_sizes)}"


def open_to_ask(path: str | os.PathLike[str], check: Callable[[Embedder], None]) -> Embedder:
    """Returns the `Embedder` of a model's quickest encoders, or the workdir's own if `check` refuses its export's.

    `check` raises `UserError` for an embedder that cannot be used. Raises the errors of `open_model` and of `check`.
    """
    try:
        embedder = open_model(quickest(path))
        check(embedder)
    except UserError as error:
        if export_of(path) == path:
            raise
        announce(f"{display_name(error)} So the workdir's own model is used.")
        embedder = open_model(path)
        check(embedder)
    return embedder


def lite_embedder(folder: pathlib.Path) -> Embedder:
    """Returns the `Embedder` of a `lite/`, without TensorFlow; raises `UserError` if its files are unusable."""
    from mural_lite.litert.model import LiteModel

    model = LiteModel(folder)
    text_heads = {head: model.text_function(head) for head in model.heads}
    prompted = {}
    if model.config.vocabulary.prompt:
        prompted = {head: model.text_function(head, prompt="") for head in ("", *model.heads)}
    encoders = Encoders(model.prepare_image, model.embed_images, model.text_function(), text_heads, prompted)
    embedder = Embedder(encoders, model.embedding_size, model.config, display_name(folder), model.step)
    embedder.original = model.original
    embedder.encoder = encoder_of(folder)
    embedder.reading = model.reading
    return embedder
