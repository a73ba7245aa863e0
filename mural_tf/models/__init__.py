"""Methods: `DualEncoder` and the training step, which all share, and one file for each, found by its module's name.

`config.model` names a module of this package, such as "mural", or a class from anywhere, "package.module:Class".
`build.py` builds a configured method with its towers. This file imports no TensorFlow before a method is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pathlib
import types
from collections.abc import Mapping

from ml_collections import ConfigDict

from mural_lite.config_file import field_kind
from mural_lite.errors import UserError
from mural_lite.files import check_json

# Files of this package that hold no method.
NOT_METHODS = (
    "__init__", "build", "dual_encoder", "embedder", "frozen", "keras_model", "states", "step", "temperature",
)  # fmt: skip


def method_names() -> list[str]:
    """Returns the names of the methods of this package: its modules."""
    files = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return [file.stem for file in files if file.stem not in NOT_METHODS]


def method_class(name: str) -> type:
    """Returns the `DualEncoder` subclass of a name, as `config.model` has it; raises `UserError` if it is missing."""
    from mural_tf.models.dual_encoder import DualEncoder

    if ":" in name:
        return _class_from_outside(name)
    names = method_names()
    if name not in names:
        problem = f"Unknown model {name!r}; known: {', '.join(names)}, or package.module:Class."
        for near in difflib.get_close_matches(name, names, n=1):
            problem += f" Did you mean {near}?"
        raise UserError(problem)
    module = importlib.import_module(f"mural_tf.models.{name}")
    *_, method = classes_of(module, DualEncoder)  # the last one; the classes before it are its bases
    return method


def classes_of(module: types.ModuleType, base: type) -> list[type]:
    """Returns the subclasses of `base` that a module defines itself, in their order."""
    classes = filter(inspect.isclass, vars(module).values())
    return [value for value in classes if value.__module__ == module.__name__ and issubclass(value, base)]


def takes_steps(method: type) -> bool:
    """Whether a method is trained by steps; one with a function `learn` takes its weights from the data instead."""
    return not hasattr(method, "learn")


def _class_from_outside(name: str) -> type:
    """Returns the `DualEncoder` subclass "package.module:Class"; raises `UserError` if it cannot be imported."""
    from mural_tf.models.dual_encoder import DualEncoder

    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise UserError(f"The model {name!r} is not the name of a class: expected package.module:Class.")
    try:
        method = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"The model {name!r} cannot be imported ({error}): expected package.module:Class.") from None
    if not (inspect.isclass(method) and issubclass(method, DualEncoder)):
        raise UserError(f"The model {name!r} is not a subclass of mural_tf.models.dual_encoder.DualEncoder.")
    return method


def mount(config: ConfigDict, name: str) -> ConfigDict:
    """Makes `config` one of the method `name`: sets `model`, and `method` to the fields that are the method's own.

    Values that `config.method` holds already stay; fields that the method lacks go. Returns `config`.
    """
    fields = dict(method_class(name).fields)
    present_values = {key: value for key, value in config.method.items() if key in fields}
    with config.unlocked():
        config.model = name
        config.method = ConfigDict({**fields, **present_values})
    return config


def complete(config: ConfigDict) -> ConfigDict:
    """Returns a copy with all fields of its method: a field that the configuration lacks gets the method's default.

    A configuration lacks fields that are newer than itself, or if it names a method without mounting it.

    Raises `UserError` for a field that its method lacks, or that holds a value of another type.
    """
    fields = method_class(config.model).fields
    for key, value in config.method.items():
        if key not in fields:
            raise UserError(f"Unknown configuration key method.{key}{_hint(key, fields, config.model)}")
        if isinstance(value, tuple):
            value = list(value)  # JSON has no tuples
        check_json(value, field_kind(fields[key]), f"method.{key}", "The configuration")
    return mount(config.copy_and_resolve_references(), config.model)


def _hint(key: str, fields: Mapping, method: str) -> str:
    """Returns the end of a message about an unknown field: the most similar field, or all fields of the method."""
    near = difflib.get_close_matches(key, list(fields), n=1)
    if near:
        return f"; did you mean method.{near[0]}?"
    return f"; {method} has {', '.join(fields) or 'none'}."


def streams_of(config: ConfigDict) -> tuple[str, ...]:
    """Returns the streams of data that a complete configuration's method takes, see `DualEncoder.streams`."""
    from mural_tf.backend import keras

    method = method_class(config.model)
    without_towers = method.__new__(method)  # its tables need no towers
    keras.Model.__init__(without_towers)
    without_towers.options = config.method
    without_towers.loss_config = config.loss
    without_towers.text_tower = config.text_tower
    return without_towers.streams


def assemble(config: ConfigDict, image_encoder, text_encoder, vocabulary_size: int):
    """Returns the `DualEncoder` of a complete configuration with these towers; its heads have no variables yet."""
    names = ("loss", "method", "embedding_size", "shared_head", "text_tower")
    parts = ConfigDict({name: config[name] for name in names}, convert_dict=False)
    parts.names_classes = config.image_tower.classes > 0 and not config.text_tower.bridged
    parts.image_size = config.image_tower.image_size
    parts.vocabulary_size = vocabulary_size
    model = method_class(config.model)(image_encoder, text_encoder, parts)
    model.configuration = config
    return model
