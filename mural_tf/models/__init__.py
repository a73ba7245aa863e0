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
    """Returns the names of the methods of this package, such as "mural": its modules without `NOT_METHODS`, sorted."""
    files = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return [file.stem for file in files if file.stem not in NOT_METHODS]


def method_class(name: str) -> type:
    """Returns the `DualEncoder` subclass of a method.

    Args:
      name: a value of `config.model`, such as "mural", or "package.module:Class" of a class from elsewhere.

    Raises:
      UserError: an unknown name, or a class that cannot be imported or is no `DualEncoder`.
    """
    from mural_tf.models.dual_encoder import DualEncoder

    if ":" in name:
        return _class_from_outside(name)
    names = method_names()
    if name not in names:
        problem = f"Unknown model {name!r}; known: {', '.join(names)}, or package.module:Class."
        similar_names = difflib.get_close_matches(name, names, n=1)
        if similar_names:
            problem += f" Did you mean {similar_names[0]}?"
        raise UserError(problem)
    module = importlib.import_module(f"mural_tf.models.{name}")
    return classes_of(module, DualEncoder)[-1]  # a module defines the bases of its method before the method


def classes_of(module: types.ModuleType, base: type) -> list[type]:
    """Returns the subclasses of `base` that a module defines itself and does not import, in their order."""
    classes = filter(inspect.isclass, vars(module).values())
    return [member for member in classes if member.__module__ == module.__name__ and issubclass(member, base)]


def takes_steps(method: type) -> bool:
    """Whether a method is trained by steps; a method with a function `learn` computes its weights without steps."""
    return not hasattr(method, "learn")


def mount(config: ConfigDict, name: str) -> ConfigDict:
    """Sets the method of `config`: `config.model` to `name`, and `config.method` to the method's fields.

    Fields that `config.method` has already keep their values; fields that the method lacks are removed. Returns
    `config` itself.
    """
    fields = method_class(name).fields
    present_values = {key: value for key, value in config.method.items() if key in fields}
    with config.unlocked():
        config.model = name
        config.method = ConfigDict({**fields, **present_values})
    return config


def complete(config: ConfigDict) -> ConfigDict:
    """Returns a copy of a configuration whose `method` has all fields: missing fields get the method's defaults.

    Fields are missing where the configuration is older than they are, or names a method without mounting it.
    Raises `UserError` for a field that the method lacks, and for a value of another type than the field's.
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
    """Returns the end of a message about the unknown field `key`: the most similar of the method's fields, or all."""
    similar_fields = difflib.get_close_matches(key, list(fields), n=1)
    if similar_fields:
        return f"; did you mean method.{similar_fields[0]}?"
    return f"; {method} has {', '.join(fields) or 'none'}."


def streams_of(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names of the data streams that a complete configuration's method reads, as `DualEncoder.streams`.

    No tower is built for it. Raises `UserError` if the weights of all the method's losses are 0.
    """
    from mural_tf.backend import keras

    method = method_class(config.model)
    without_towers = method.__new__(method)  # a method's `__init__` asks for towers
    keras.Model.__init__(without_towers)  # Keras refuses attributes before it
    without_towers.options = config.method
    without_towers.loss_config = config.loss
    without_towers.text_tower = config.text_tower
    return without_towers.streams


def assemble(config: ConfigDict, image_encoder, text_encoder, vocabulary_size: int):
    """Returns the `DualEncoder` of a complete configuration; its heads have no variables yet.

    Raises `UserError` for towers or fields that the method cannot have.

    Args:
      config: the whole tree, with all fields of its method, see `complete`.
      image_encoder, text_encoder: the towers, as `DualEncoder` takes them.
      vocabulary_size: word pieces of the text tower.
    """
    names = ("loss", "method", "embedding_size", "shared_head", "text_tower")
    method_config = ConfigDict({name: config[name] for name in names}, convert_dict=False)
    # ConSE: images have the text tower's states of their classes' names. A bridged tower took that tower's place.
    method_config.names_classes = config.image_tower.classes > 0 and not config.text_tower.bridged
    method_config.image_size = config.image_tower.image_size
    method_config.vocabulary_size = vocabulary_size
    model = method_class(config.model)(image_encoder, text_encoder, method_config)
    model.configuration = config
    return model


def _class_from_outside(name: str) -> type:
    """Returns the class "package.module:Class"; raises `UserError` if it is not there, or is no `DualEncoder`."""
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
