"""TensorFlow Serving's JSON for predictions (https://www.tensorflow.org/tfx/serving/api_rest), to arrays and back.

A request is `{"signature_name": …, "instances": [row, …]}` or `{…, "inputs": columns}`; a row is an object with every
input, or the value itself where there is one input; bytes are `{"b64": "…"}`. Rows are answered with "predictions",
columns with "outputs"; for a single output, the values are there directly.

One field more, which TensorFlow Serving passes over: `"on_error": "zeros"` asks for a row of zeros in place of an image
that cannot be read; without it, or with "raise", the request is refused.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import itertools
import json
from collections.abc import Mapping

import numpy as np

SIGNATURE = "serving_default"
RAISE, ZEROS = "raise", "zeros"  # what becomes of an image that cannot be read
MARKS = (b",", b":", b"[", b"{")  # one of them precedes every value of JSON but the first
PIECE = 2**14  # numbers of an answer that become text at a time


@dataclasses.dataclass(frozen=True)
class Spec:
    """An input of a signature: its type, `object` for strings, and its shape, None where any size is right."""

    dtype: np.dtype
    shape: tuple[int | None, ...]


class BadRequest(ValueError):
    """What is wrong with a request, in words for its sender, and the status of HTTP that says so."""

    def __init__(self, words: str, status: int = 400):
        super().__init__(words)
        self.status = status


def parse_body(body: bytes, most_values: int) -> dict:
    """Returns the JSON object of a body, which may begin with a byte order mark; raises `BadRequest` for others.

    JSON of tiny values takes up to thirty times its size as Python's objects. So `most_values` are allowed, counted by
    the commas, colons and opening brackets before them, also in texts.
    """
    count = sum(map(body.count, MARKS))
    if count > most_values:
        what = "numbers, texts, lists and objects, by commas, colons and brackets"
        raise BadRequest(f"The body has {count} {what}; at most {most_values} are taken. Send several requests.", 413)
    try:
        values = json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8 ({error.reason} at byte {error.start}).") from None
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or lists in lists in lists
        raise BadRequest(f"The body is not JSON that can be read: {error}.") from None
    if not isinstance(values, dict):
        raise BadRequest(f'Expected a JSON object with "instances" or "inputs", got {_kind(values)}.')
    return values


def options(values: dict) -> tuple[str, str]:
    """Returns the signature that a request asks for, and its wish for an image that cannot be read."""
    name, on_error = values.get("signature_name", ""), values.get("on_error", RAISE)
    if not isinstance(name, str):
        raise BadRequest(f'"signature_name" must be a string, got {_kind(name)}.')
    if on_error not in (RAISE, ZEROS):
        raise BadRequest(f'"on_error" must be {RAISE!r} or {ZEROS!r}, got {_kind(on_error)} that is neither.')
    return name or SIGNATURE, on_error


def parse_inputs(values: dict, specs: Mapping[str, Spec], max_rows: int) -> tuple[dict[str, np.ndarray], bool]:
    """Returns {input: array of one row or more} of a request, and whether it came in rows.

    Args:
      values: the request's JSON object.
      specs: the signature's inputs; the first dimension of each is the batch.
      max_rows: checked before anything is built.

    Raises:
      BadRequest: anything that does not fit; names the place.
    """
    is_rows = "instances" in values
    if is_rows == ("inputs" in values):
        raise BadRequest('Expected either "instances" (rows) or "inputs" (columns).')
    if is_rows:
        _check_rows(values["instances"], '"instances"', max_rows)
        columns = _columns(values["instances"], specs)
    else:
        columns = _named(values["inputs"], specs, '"inputs"')
        for name in specs:
            _check_rows(columns[name], repr(name), max_rows)
    counts = {name: len(columns[name]) for name in specs}
    if len(set(counts.values())) > 1:
        raise BadRequest(f"All inputs must have the same number of rows, got {counts}.")
    return {name: _array(columns[name], spec, name) for name, spec in specs.items()}, is_rows


def _check_rows(rows, where: str, most: int) -> None:
    if not isinstance(rows, list):
        raise BadRequest(f"{where} must be a list, one value a row, got {_kind(rows)}.")
    if not rows:
        raise BadRequest(f"{where} is empty: expected one row or more.")
    if len(rows) > most:
        raise BadRequest(f"{len(rows)} rows in one request; at most {most} are taken.")


def answer_json(outputs: Mapping[str, np.ndarray], is_rows: bool) -> str:
    """Returns the JSON text that answers a request.

    It is made in pieces of about `PIECE` numbers: a piece holds Python's lock, and others come between them.
    """
    if not is_rows and len(outputs) > 1:
        return json.dumps({"outputs": {name: array.tolist() for name, array in outputs.items()}})
    size = max(1, sum(array[:1].size for array in outputs.values()))  # numbers per row
    count, step, pieces = len(next(iter(outputs.values()))), -(-PIECE // size), []
    for start in range(0, count, step):
        columns = [array[start : start + step].tolist() for array in outputs.values()]
        rows = columns[0] if len(columns) == 1 else [dict(zip(outputs, row)) for row in zip(*columns)]
        pieces.append(json.dumps(rows)[1:-1])
    return f'{{"{"predictions" if is_rows else "outputs"}": [{", ".join(pieces)}]}}'


def _columns(rows, specs) -> dict[str, list]:
    named = [_named(row, specs, f'"instances"[{i}]') for i, row in enumerate(rows)]
    return {name: [row[name] for row in named] for name in specs}


def _named(value, specs, where: str) -> dict:
    """Returns {input: value}; a value that is not an object of inputs belongs to the only input."""
    if isinstance(value, dict) and set(value) != {"b64"}:
        if set(value) != set(specs):
            raise BadRequest(f"{where} has the keys {sorted(value)}; this signature takes {sorted(specs)}.")
        return value
    if len(specs) > 1:
        raise BadRequest(f"{where} must be an object with the keys {sorted(specs)}, got {_kind(value)}.")
    return {name: value for name in specs}


def _array(rows: list, spec: Spec, name: str) -> np.ndarray:
    values, shape = _flatten(rows, spec, name)
    if spec.dtype != object:
        return _numbers(values, spec, name).reshape(shape)
    array = np.empty(len(values), object)  # not np.array, which would drop NULs at the end
    array[:] = [_decoded(value, name) for value in values]
    return array.reshape(shape)


def _flatten(rows: list, spec: Spec, name: str) -> tuple[list, list[int]]:
    """Returns the values of a list nested as deep as the spec's shape, and its shape.

    NumPy is not asked: it would make all strings as long as the longest, and all rows as long as the first.
    """
    wanted = "[" + ", ".join("any" if size is None else str(size) for size in spec.shape) + "]"
    values, shape = [rows], []
    for size in spec.shape:
        if not all(isinstance(value, list) for value in values):
            raise BadRequest(f"{name!r} is ragged or nested {len(shape)} deep, expected the shape {wanted}.")
        sizes = set(map(len, values))
        if len(sizes) > 1:
            raise BadRequest(f"{name!r} is ragged: lists of {min(sizes)} and of {max(sizes)} values in one place.")
        shape.append(sizes.pop() if sizes else size or 0)
        if size not in (None, shape[-1]):
            raise BadRequest(f"{name!r} begins with the shape {shape}, expected {wanted}.")
        values = list(itertools.chain.from_iterable(values))
    if any(isinstance(value, list) for value in values):
        raise BadRequest(f"{name!r} is ragged or nested more than {len(shape)} deep, expected the shape {wanted}.")
    return values, shape


def _numbers(values: list, spec: Spec, name: str) -> np.ndarray:
    is_integer = spec.dtype.kind in "iu"
    array = np.array(values) if set(map(type, values)) <= {int, float} else None
    if array is None or (array.size and array.dtype.kind not in ("iu" if is_integer else "iuf")):
        raise BadRequest(f"{name!r} must hold {spec.dtype.name} values only.")
    if is_integer and array.size:
        bounds = np.iinfo(spec.dtype)
        if not bounds.min <= array.min() <= array.max() <= bounds.max:
            raise BadRequest(f"{name!r} holds a number outside of {spec.dtype.name}.")
    with np.errstate(over="ignore"):
        array = array.astype(spec.dtype)
    if not is_integer and not np.isfinite(array).all():
        raise BadRequest(f"{name!r} holds a number that is not finite.")
    return array


def _decoded(value, name: str) -> bytes:
    """A string as UTF-8, {"b64": …} as its bytes."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise BadRequest(f"{name!r} holds half of a surrogate pair, which is not Unicode text.") from None
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            encoded = "".join(value["b64"].split())  # of MIME, in lines; padding is optional
            return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f'{name!r} holds a "b64" that is not base64: {error}.') from None
    raise BadRequest(f'{name!r} takes strings or {{"b64": "…"}}, got {_kind(value)}.')


def _kind(value) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
