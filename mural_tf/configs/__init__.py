"""The configurations: `--config=NAME` is the file of this name here; docs/training.md says what they are for.

`parse` reads the arguments of a configuration: what follows the colon in `--config=configs/emoji.py:etcl,steps=300`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mural_lite.errors import UserError

Field = type | Sequence[str]  # int, str, or the values to choose from


def parse(text: str, variants: Mapping[str, Mapping[str, Field]]) -> tuple[str, dict]:
    """Returns ("etcl", {"steps": 300}) for "etcl,steps=300": a variant, then fields in any order.

    Args:
      text: the arguments; without a variant it is the first of `variants`.
      variants: {variant: {name of a field: what it takes}}.

    Raises:
      UserError: a variant, a field or a value that is not known.
    """
    words = [word for word in text.split(",") if word]
    variant = next(iter(variants))
    if words and "=" not in words[0]:
        variant = words.pop(0)
    if variant not in variants:
        raise UserError(f"Unknown argument {variant!r} of the configuration: expected one of {', '.join(variants)}.")
    fields = variants[variant]
    given = {}
    for word in words:
        name, _, value = word.partition("=")
        field = fields.get(name)
        if field is None or not _takes(field, value):
            expected = ", ".join(map(_shown, fields.items())) or "no others"
            raise UserError(f"Unknown argument {word!r} of the configuration: {variant} takes {expected}.")
        given[name] = int(value) if field is int else value
    return variant, given


def _takes(field: Field, value: str) -> bool:
    """Whether a field may have this value."""
    if field is int:
        return value.isdecimal()
    if field is str:
        return value != ""
    return value in field


def _shown(field: tuple[str, Field]) -> str:
    """Returns a field with its possible values for a message: "steps=NUMBER"."""
    name, values = field
    if values is int:
        return f"{name}=NUMBER"
    if values is str:
        return f"{name}=…"
    return f"{name}={'|'.join(values)}"
