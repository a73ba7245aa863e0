"""The configurations: `--config=NAME` is the file of this name here; docs/training.md says what they are for.

`parse` reads the arguments of a configuration: what follows the colon in `--config=configs/emoji.py:etcl,steps=300`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mural_lite.errors import UserError

Field = type | Sequence[str]  # int, str, or the values to choose from


def parse(text: str, variants: Mapping[str, Mapping[str, Field]]) -> tuple[str, dict]:
    """Returns the variant and {field: value} that a configuration's argument names: ("etcl", {"steps": 300}).

    Args:
      text: the argument, such as "etcl,steps=300": a variant, by default the first of `variants`, then any fields.
      variants: {variant: {name of a field: its `Field`}}.

    Raises:
      UserError: an unknown variant or field, or a value that the field does not take.
    """
    arguments = [argument for argument in text.split(",") if argument]
    variant = list(variants)[0]
    if arguments and "=" not in arguments[0]:
        variant = arguments.pop(0)
    if variant not in variants:
        raise UserError(f"Unknown argument {variant!r} of the configuration: expected one of {', '.join(variants)}.")
    fields = variants[variant]
    values = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        field = fields.get(name)
        if field is None or not _takes(field, value):
            expected = ", ".join(_describe(name, field) for name, field in fields.items()) or "no others"
            raise UserError(f"Unknown argument {argument!r} of the configuration: {variant} takes {expected}.")
        values[name] = int(value) if field is int else value
    return variant, values


def _takes(field: Field, value: str) -> bool:
    """Whether a field takes this text as its value: digits for int, any text but "" for str, else a choice."""
    if field is int:
        return value.isdecimal()
    if field is str:
        return value != ""
    return value in field


def _describe(name: str, field: Field) -> str:
    """Returns how a field is given, for a message: "steps=NUMBER", "words=…" or "languages=core|all"."""
    if field is int:
        return f"{name}=NUMBER"
    if field is str:
        return f"{name}=…"
    return f"{name}={'|'.join(field)}"
