"""TensorFlow Serving's JSON for predictions (https://www.tensorflow.org/tfx/serving/api_rest), to arrays and back.

A request is `{"signature_name": …, "instances": [row, …]}` or `{…, "inputs": columns}`; a row is an object with every
input, or the value itself where there is one input; bytes are `{"b64": "…"}`. Rows are answered with "predictions",
columns with "outputs"; for a single output, the values are there directly.

One difference: an empty list of rows is answered with an empty list.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

SIGNATURE = "serving_default"


class BadRequest(ValueError):
    """What is wrong with a request, in words for its sender."""


def parse_body(body: bytes) -> dict:
    """Returns the JSON object of a body; raises `BadRequest` for anything else."""
    try:
        values = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8 ({error.reason} at byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None
    if not isinstance(values, dict):
        raise BadRequest(f'Expected a JSON object with "instances" or "inputs", got {_kind(values)}.')
    return values


def signature_name(values: dict) -> str:
    """Returns the signature that a request asks for."""
    name = values.get("signature_name", "")
    if not isinstance(name, str):
        raise BadRequest(f'"signature_name" must be a string, got {_kind(name)}.')
    return name or SIGNATURE


def parse_inputs(values: dict, specs: Mapping[str, tf.TensorSpec]) -> tuple[dict[str, np.ndarray], bool]:
    """Returns {input: array of one row or more} of a request, and whether it came in rows.

    Args:
      values: the request's JSON object.
      specs: the signature's inputs; the first dimension of each is the batch.

    Raises:
      BadRequest: anything that does not fit; names the place.
    """
    is_rows = "instances" in values
    if is_rows == ("inputs" in values):
        raise BadRequest('Expected either "instances" (rows) or "inputs" (columns).')
    if is_rows:
        columns = _columns(values["instances"], specs)
    else:
        columns = _named(values["inputs"], specs, '"inputs"')
    arrays = {name: _array(columns[name], spec, name) for name, spec in specs.items()}
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise BadRequest(f"All inputs must have the same number of rows, got {counts}.")
    return arrays, is_rows


def make_answer(outputs: Mapping[str, np.ndarray], is_rows: bool) -> dict:
    """Returns the JSON object that answers a request."""
    lists = {name: array.tolist() for name, array in outputs.items()}
    if not is_rows:
        return {"outputs": next(iter(lists.values())) if len(lists) == 1 else lists}
    if len(lists) == 1:
        return {"predictions": next(iter(lists.values()))}
    return {"predictions": [dict(zip(lists, row)) for row in zip(*lists.values())]}


def _columns(rows, specs) -> dict[str, list]:
    if not isinstance(rows, list):
        raise BadRequest(f'"instances" must be a list, got {_kind(rows)}.')
    named = [_named(row, specs, f'"instances"[{i}]') for i, row in enumerate(rows)]
    return {name: [row[name] for row in named] for name in specs}


def _named(value, specs, place: str) -> dict:
    """Returns {input: value}; a value that is not an object of inputs belongs to the only input."""
    if isinstance(value, dict) and set(value) != {"b64"}:
        if set(value) != set(specs):
            raise BadRequest(f"{place} has the keys {sorted(value)}; this signature takes {sorted(specs)}.")
        return value
    if len(specs) > 1:
        raise BadRequest(f"{place} must be an object with the keys {sorted(specs)}, got {_kind(value)}.")
    return {name: value for name in specs}


def _array(value, spec: tf.TensorSpec, name: str) -> np.ndarray:
    if not isinstance(value, list):
        raise BadRequest(f"{name!r} must be a list, one value a row, got {_kind(value)}.")
    if not value:
        return np.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype.as_numpy_dtype)
    try:
        array = _strings(value, name) if spec.dtype == tf.string else np.array(value)
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest(f"{name!r} is nested too deeply.") from None
    except (ValueError, OverflowError):
        raise BadRequest(f"{name!r} is ragged or holds values other than {spec.dtype.name}.") from None
    if array.ndim != spec.shape.rank or not spec.shape.is_compatible_with(array.shape):
        wanted = "[" + ", ".join("any" if size is None else str(size) for size in spec.shape) + "]"
        raise BadRequest(f"{name!r} has the shape {list(array.shape)}, expected {wanted}.")
    return array if spec.dtype == tf.string else _numbers(array, spec, name)


def _numbers(array: np.ndarray, spec: tf.TensorSpec, name: str) -> np.ndarray:
    kinds = "iu" if spec.dtype.is_integer else "iuf"
    if array.size and array.dtype.kind not in kinds:
        raise BadRequest(f"{name!r} must hold {spec.dtype.name} values only.")
    if spec.dtype.is_integer and array.size and not spec.dtype.min <= array.min() <= array.max() <= spec.dtype.max:
        raise BadRequest(f"{name!r} holds a number outside of {spec.dtype.name}.")
    with np.errstate(over="ignore"):
        array = array.astype(spec.dtype.as_numpy_dtype)
    if spec.dtype.is_floating and not np.isfinite(array).all():
        raise BadRequest(f"{name!r} holds a number that is not finite.")
    return array


def _strings(value: list, name: str) -> np.ndarray:
    decoded = _decoded(value, name)
    shape, level = [], decoded
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    flat = np.empty(shape, object)  # not np.array, which would drop NULs at the end
    flat[...] = decoded  # raises ValueError if ragged
    return flat


def _decoded(value, name: str):
    """Strings as UTF-8, {"b64": …} as bytes, lists of these as lists."""
    if isinstance(value, list):
        return [_decoded(item, name) for item in value]
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise BadRequest(f"{name!r} holds half of a surrogate pair, which is not Unicode text.") from None
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f'{name!r} holds a "b64" that is not base64: {error}.') from None
    raise BadRequest(f'{name!r} takes strings or {{"b64": "…"}}, got {_kind(value)}.')


def _kind(value) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")
