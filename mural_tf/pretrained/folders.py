"""Folders of weights from elsewhere: which family's they are, by their descriptions, before any weights are opened.

Hugging Face's folders say their family in config.json. Sentence-Transformers has modules.json, whose first module may
itself be a folder of Hugging Face; open_clip has open_clip_config.json.
"""

from __future__ import annotations

import json
import pathlib

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field, read_json
from mural_tf.pretrained.keys import json_or_empty

MODULES = "modules.json"
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = "open_clip_model.safetensors"
# `model_type` in config.json: the family. All other types are taken for a BERT, which refuses types that it is not.
FAMILY_OF_TYPE = {
    "align": "align",
    "siglip": "siglip",
    "siglip2": "naflex",
    "fgclip2": "naflex",
    "clip": "clip",
    "M-CLIP": "m_clip",
    "modernbert": "modernbert",
}


def family_of(folder: pathlib.Path) -> str:
    """Returns the family that a folder or file of weights belongs to, a name in `importers.FAMILIES`; "" for others.

    A folder without `model_type` in its config.json, such as a workdir, is not a checkpoint. Raises `UserError` for
    damaged descriptions.
    """
    if folder.suffix == ".npz":
        return "siglip"
    if folder.suffix == ".pth":
        return "efficientnet"
    if (folder / MODULES).is_file():
        return _family_of_modules(folder)
    if (folder / OPEN_CLIP_CONFIG).is_file():
        return _family_of_open_clip(folder)
    if (folder / "config.json").is_file():
        values = read_json(folder / "config.json")
        model_type = values.get("model_type")
        if "MexmaSigLIP" in (values.get("architectures") or ()):  # a class of its own repository
            return "mexma_siglip"
        if model_type is None:
            return ""
        return FAMILY_OF_TYPE.get(str(model_type), "bert")
    if folder.is_dir() and find_efficientnet(folder):
        return "efficientnet"
    return ""


def _family_of_modules(folder: pathlib.Path) -> str:
    """Returns "sentences" for a folder of Sentence-Transformers, or the family of its CLIP or SigLIP."""
    modules = module_folders(folder)
    if modules:
        _, first_folder = modules[0]
        model_type = json_or_empty(first_folder / "config.json").get("model_type")
        if model_type in ("clip", "siglip", "siglip2"):
            return FAMILY_OF_TYPE[model_type]
    return "sentences"


def _family_of_open_clip(folder: pathlib.Path) -> str:
    """Returns the family of open_clip's folder: "siglip" by timm's image tower, else by its text tower."""
    model, path = open_clip_settings(folder)
    vision = json_field(model, "vision_cfg", dict, path, {})
    if "siglip" in str(vision.get("timm_model_name")):
        return "siglip"
    if has_xlm_roberta(folder):
        return "xlm_roberta_clip"
    return "clip"


def open_clip_settings(folder: pathlib.Path) -> tuple[dict, pathlib.Path]:
    """Returns (`model_cfg` in the configuration of open_clip's folder, the configuration's file).

    Raises `UserError` if the file is missing or damaged.
    """
    path = folder / OPEN_CLIP_CONFIG
    return json_field(read_json(path), "model_cfg", dict, path), path


def has_xlm_roberta(folder: pathlib.Path) -> bool:
    """Whether the text tower of open_clip's folder is an XLM-RoBERTa."""
    model, path = open_clip_settings(folder)
    text = json_field(model, "text_cfg", dict, path, {})
    return "xlm-roberta" in str(text.get("hf_model_name", ""))


def find_efficientnet(folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the file of weights in a folder, or in its `models/`; `None` if there is no such file, or several."""
    files = []
    for pattern in ("*.h5", "*.pth", "models/*.pth", "*.index"):
        files += folder.glob(pattern)
    return files[0] if len(files) == 1 else None


def module_folders(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    """Returns [(class name, folder)] of the modules of a folder of Sentence-Transformers, in their order.

    For example [("Transformer", folder), ("Pooling", folder / "1_Pooling")]. Raises `UserError` if modules.json is
    missing or damaged, or names classes from elsewhere.
    """
    path = folder / MODULES
    if not path.is_file():
        raise UserError(f"{folder} has no {MODULES}: expected a folder of Sentence-Transformers.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    rows = check_json(content, list[dict], "the list of modules", path)
    types = [str(row.get("type")) for row in rows]
    for class_name in types:
        if not class_name.startswith("sentence_transformers."):
            raise UserError(f"{path}: the module {class_name} is the folder's own code, which is not run.")
    names = [pathlib.PurePath(str(row.get("path", ""))).name for row in rows]  # "": the folder itself
    if ".." in names:
        raise UserError(f"{path}: a module lies in .., outside of {folder}: correct or restore it.")
    folders = [folder / name for name in names]
    return [(class_name.rpartition(".")[2], module_folder) for class_name, module_folder in zip(types, folders)]


def folder_of_two_towers(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder with the files of a CLIP or SigLIP: `folder`, or in Sentence-Transformers' its first module's.

    Raises `UserError` for other modules than one model and Normalize.
    """
    folder = pathlib.Path(folder)
    if not (folder / MODULES).is_file():
        return folder
    modules = module_folders(folder)
    classes = [class_name for class_name, _ in modules]
    if classes[:1] not in (["CLIPModel"], ["Transformer"]) or not set(classes[1:]) <= {"Normalize"}:
        raise UserError(f"{folder / MODULES}: modules {', '.join(classes)}; expected only CLIPModel or Transformer.")
    _, first_folder = modules[0]
    return first_folder
