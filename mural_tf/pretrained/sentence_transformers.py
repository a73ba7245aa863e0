"""Folders of Sentence-Transformers (Reimers and Gurevych, 2019): a BERT or DistilBERT, pooling, dense layers.

`modules.json` names the modules in their order. The first is the text tower; pooling takes the first position or the
mean; a Dense layer with tanh is the tower's pooler; a Dense layer without activation becomes every text head of the
model, as in `clip-ViT-B-32-multilingual-v1`, whose texts are in CLIP's space. Without it the heads are the identity.

Each module has a file of settings. Settings that change vectors are used; settings that this project does not have are
allowed only with the value that changes nothing, and an unknown key is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Collection

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import check_json, json_field, read_json
from mural_tf.encoders.bert import POOLER
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import hugging_face_bert, modernbert
from mural_tf.pretrained.folders import MODULES, module_folders
from mural_tf.pretrained.importer import TEXT, Importer
from mural_tf.pretrained.keys import FREE, check_keys, json_or_empty
from mural_tf.pretrained.tables import assign, kernel_and_bias, zeros_for
from mural_tf.pretrained.tokenizer_files import max_length
from mural_tf.pretrained.vocabularies import vocabulary_of
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors

SETTINGS = "config_sentence_transformers.json"
POOLINGS = {"cls": "first", "mean": "mean"}  # theirs: ours
OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = ("Identity", "Tanh")
# Files of the first module's settings: today's name, and the older names by the tower.
TOWER_SETTINGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_OUTPUT = {"method": ("forward",), "method_output_name": ("last_hidden_state",)}
# The keys of each file and the values that they may have; null is always right.
TOWER_KEYS = {
    "do_lower_case": (False, True),
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": ({},),
    "query_length": (),
    "document_length": (),
    "query_expansion": (),
    "tokenizer_name_or_path": (),
    **dict.fromkeys(("max_seq_length", "modality_config"), FREE),  # see `_length` and `_tower_settings`
    **dict.fromkeys(("model_args", "model_kwargs"), FREE),  # precision, the way of attention
    **dict.fromkeys(("unpad_inputs", "model_name_or_path", "cache_dir", "backend"), FREE),
    **dict.fromkeys(("tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"), ({},)),
}
POOLING_KEYS = {
    "word_embedding_dimension": FREE,
    "embedding_dimension": FREE,
    "pooling_mode": FREE,
    "include_prompt": (True, False),
    **dict.fromkeys(OLD_POOLINGS, FREE),
}
DENSE_KEYS = {
    "in_features": FREE,
    "out_features": FREE,
    "bias": FREE,
    "activation_function": FREE,
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding",),
    "use_residual": (False,),
}


@dataclasses.dataclass(frozen=True)
class Modules:
    """The modules that a folder's `modules.json` names.

    Attributes:
      tower: the folder of the text tower and its tokenizer.
      pooling: "first" or "mean".
      pooler: the folder of the Dense layer with tanh, if there is any.
      head: the folder of the Dense layer without activation, if there is any.
    """

    tower: pathlib.Path
    pooling: str
    pooler: pathlib.Path | None
    head: pathlib.Path | None


def text_folder(folder: str | pathlib.Path) -> pathlib.Path:
    """Returns the folder of the text tower and its tokenizer in a folder; raises as `read_modules`."""
    return read_modules(folder).tower


def read_modules(folder: str | pathlib.Path) -> Modules:
    """Returns the modules of a folder; raises `UserError` for modules, or an order of them, that are not supported."""
    folder = pathlib.Path(folder)
    path = folder / MODULES
    module_list = module_folders(folder)
    classes = [class_name for class_name, _ in module_list]
    if classes[:1] == ["CLIPModel"]:
        raise UserError(f"{path}: its module is a CLIP of images and texts: expected `import clip`, with --text=….")
    if classes[:2] != ["Transformer", "Pooling"] or not set(classes[2:]) <= {"Dense", "Normalize"}:
        raise UserError(
            f"{path}: modules {', '.join(classes)}; expected Transformer, Pooling, then Dense or Normalize."
        )
    dense_folders = [module_folder for class_name, module_folder in module_list if class_name == "Dense"]
    if "Normalize" in classes and "Dense" in classes[classes.index("Normalize") :]:
        raise UserError(f"{path}: modules {', '.join(classes)}; a Dense layer after Normalize is not supported.")
    activations = [_activation(dense_folder / "config.json") for dense_folder in dense_folders]
    if activations not in ([], ["Identity"], ["Tanh"], ["Tanh", "Identity"]):
        raise UserError(
            f"{path}: Dense layers with {', '.join(activations)}; expected one with Tanh, one with Identity, or both."
        )
    dense_of = dict(zip(activations, dense_folders))  # {activation: folder}
    (_, tower), (_, pooling), *_ = module_list
    return Modules(tower, _pooling(pooling / "config.json"), dense_of.get("Tanh"), dense_of.get("Identity"))


def _pooling(path: pathlib.Path) -> str:
    """Returns "first" or "mean", by the pooling's file of settings; raises `UserError` for another pooling."""
    values = read_json(path)
    check_keys(values, POOLING_KEYS, path)
    names = values.get("pooling_mode")
    if names is None:  # in older files each mode is a key with a bool
        names = [name for name in OLD_POOLINGS if values.get(name) is True]
    if not isinstance(names, list):
        names = [names]
    modes = [OLD_POOLINGS.get(str(name), str(name)) for name in names] or ["mean"]  # the library's default
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(f"{path}: pooling is {', '.join(modes)}, expected cls or mean.")
    return POOLINGS[modes[0]]


def _activation(path: pathlib.Path) -> str:
    """Returns one of `ACTIVATIONS`, by a Dense layer's file of settings; raises `UserError` for another activation."""
    values = read_json(path)
    check_keys(values, DENSE_KEYS, path)
    name = json_field(values, "activation_function", str, path, "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise UserError(f"{path}: activation_function is {name!r}, expected {' or '.join(ACTIVATIONS)}.")
    return name


def _tower_settings(folder: pathlib.Path) -> tuple[dict, pathlib.Path]:
    """Returns (the settings {key: value} of the text tower in a folder, the file that holds them).

    The file is the first of `TOWER_SETTINGS` that exists; without any the settings are {}. Raises `UserError` for
    settings that are not supported.
    """
    paths = [folder / name for name in TOWER_SETTINGS if (folder / name).is_file()]
    path = paths[0] if paths else folder / TOWER_SETTINGS[0]
    values = json_or_empty(path)
    check_keys(values, TOWER_KEYS, path)
    if values.get("modality_config"):
        modality = json_field(values, "modality_config.text", dict, path, {})
        check_keys(modality, _OUTPUT, path)
    return values, path


def _length(tower: pathlib.Path, positions: int) -> int:
    """Returns the most tokens of a text by the settings in a tower's folder, else by its tokenizer_config.json.

    It is at most `positions`, as many as the weights have, and `positions` where neither file says a length.
    """
    values, path = _tower_settings(tower)
    if values.get("max_seq_length") is None:
        length = max_length(tower)
    else:
        length = json_field(values, "max_seq_length", int, path)
    if length is None:
        return positions
    return min(length, positions)


def configure(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the text tower, its length and the embedding's size in `config` by a folder.

    Raises `UserError` for modules, settings or a tower of another kind.
    """
    modules = read_modules(folder)
    tower = config.text_tower
    family = modernbert if modernbert.is_modernbert(modules.tower) else hugging_face_bert
    family.configure(modules.tower, config, functools.partial(_length, modules.tower))
    tower.pooling = modules.pooling
    tower.pooler_size = 0
    config.embedding_size = tower.hidden_size
    if modules.pooler is not None:
        tower.pooler_size = _output_size(modules.pooler)
        config.embedding_size = tower.pooler_size
    if modules.head is not None:
        config.embedding_size = _output_size(modules.head)


def _output_size(folder: pathlib.Path) -> int:
    """Returns how many numbers the Dense layer in a folder gives; raises `UserError` if settings and weights differ."""
    path = folder / "config.json"
    size = json_field(read_json(path), "out_features", int, path)
    shape = open_safetensors(folder).shapes.get("linear.weight", ())
    if shape[:1] != (size,):
        raise UserError(f"{path}: out_features is {size}, and its weights are {list(shape)}.")
    return size


def configure_texts(folder: str | pathlib.Path, config: ConfigDict) -> None:
    """Sets the steps before a folder's tokenizer in `config.vocabulary`: prompts and lower-casing.

    A folder without prompts does not change `prompt` and `prompts`. Raises `UserError` for a default prompt that is
    missing, or pooling that leaves the prompt's tokens out.
    """
    folder = pathlib.Path(folder)
    vocabulary = config.vocabulary
    values, path = _tower_settings(read_modules(folder).tower)
    if json_field(values, "do_lower_case", bool, path, False):
        if vocabulary.builder == "sentence_pieces":
            vocabulary.cleaning = ("lower_characters",)
        else:
            vocabulary.lower_case = True
    prompts, default_name = _read_prompts(folder / SETTINGS)
    if not any(prompts.values()):
        return
    _, (_, pooling_folder), *_ = module_folders(folder)
    pooling = pooling_folder / "config.json"
    if read_json(pooling).get("include_prompt", True) is False:
        raise UserError(
            f"{pooling}: include_prompt is false, and the mean without the prompt's tokens is not supported."
        )
    for name in prompts:
        if not name or "=" in name:  # `vocabulary.prompts` holds "name=text"
            raise UserError(f"{folder / SETTINGS}: prompts has the name {name!r}: expected one without '='.")
    vocabulary.prompt = "" if default_name is None else prompts[default_name]
    vocabulary.prompts = tuple(f"{name}={text}" for name, text in prompts.items())


def _read_prompts(path: pathlib.Path) -> tuple[dict[str, str], str | None]:
    """Returns ({name: prompt}, the default prompt's name or `None`) of a folder's `SETTINGS`; ({}, None) without them.

    Raises `UserError` for settings of another kind of model, or a default prompt that is missing.
    """
    values = json_or_empty(path)
    model_type = values.get("model_type")
    if model_type not in (None, "SentenceTransformer"):
        raise UserError(f"{path}: model_type is {model_type!r}, expected 'SentenceTransformer'.")
    prompts = {}
    if values.get("prompts") is not None:
        for name, text in json_field(values, "prompts", dict, path).items():
            prompts[name] = check_json(text or "", str, f"prompts.{name}", path)  # null: an empty prompt
    default_name = values.get("default_prompt_name")
    if default_name is not None and default_name not in prompts:
        names = ", ".join(prompts) or "none"
        raise UserError(f"{path}: default_prompt_name is {default_name!r}, and prompts has {names}.")
    return prompts, default_name


def load_weights(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills the text tower, and the text heads among `parts`, of a model built for `configure`'s settings.

    Raises `UserError` if a name or shape does not fit, or for a Dense layer with tanh on a ModernBERT.
    """
    modules = read_modules(folder)
    if modernbert.is_modernbert(modules.tower):
        if modules.pooler is not None:
            raise UserError(f"{modules.pooler}: a Dense layer with Tanh on a ModernBERT is not supported.")
        modernbert.load_weights(modules.tower, model.text_encoder, config.text_tower)
    else:
        hugging_face_bert.load_weights(modules.tower, model.text_encoder, config.text_tower, pooler=False)
    if modules.pooler is not None:
        _fill(model.text_encoder.get_layer(POOLER), modules.pooler)
    for name in model.head_names:
        if f"{name}_head" not in parts:
            continue
        head = model.text_head(name)
        if modules.head is not None:
            _fill(head, modules.head)
        else:
            fill_identity(head)


def fill_identity(head) -> None:
    """Sets a Dense head's kernel to the identity and its bias to zeros, so that it passes its input on."""
    head.kernel.assign(np.eye(*head.kernel.shape, dtype=np.float32))
    head.bias.assign(np.zeros(head.bias.shape, np.float32))


def _fill(layer, folder: pathlib.Path) -> None:
    """Fills a Dense layer of Keras from the folder of a Dense module; a bias that the file lacks becomes zeros."""
    weights = open_safetensors(folder)
    kernel, bias = kernel_and_bias(layer.name, "linear")
    if "linear.bias" not in weights.shapes:
        bias = zeros_for(f"{layer.name}/bias", "linear.weight", layer.units)
    assign([kernel, bias], layer.variables, weights, "", "a Dense layer")


def _read_vocabulary(folder: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns the lines of a folder's vocabulary by id, and sets its use, prompts and lower-casing in `config`."""
    tower = text_folder(folder)
    if modernbert.is_modernbert(tower):
        lines = modernbert.read_vocabulary(tower, config)
    else:
        lines = vocabulary_of(tower, config)
    configure_texts(folder, config)
    return lines


def _open_weights(folder: pathlib.Path) -> WeightFile:
    """Opens the weights of a folder's text tower."""
    return open_safetensors(text_folder(folder))


IMPORTER = Importer(
    TEXT,
    configure,
    load_weights,
    _read_vocabulary,
    method="labse",
    open_weights=_open_weights,
    has_own_head=lambda folder: read_modules(folder).head is not None,
)
