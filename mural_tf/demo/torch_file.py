"""PyTorch's own files of tensors (`.pth`, `.pt`, `.bin`) read without running anything of them.

Such a file is a pickle, a program that may call any function. This reader lets it call three: the dictionary that holds
the tensors, and the two that name a tensor's storage and its shape; a file that asks for anything else is refused
before that is looked up. Both forms are read: before PyTorch 1.6 five pickles one after the other and then each
storage's bytes; since then a ZIP archive of `data.pkl` and a member per storage.
"""

from __future__ import annotations

import collections
import math
import pathlib
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from mural_lite.errors import UserError, first_line
from mural_tf.pretrained.weight_files import WeightFile

MAGIC = 0x1950A86A20F9469CFC6C  # how a file in the older form begins
PROTOCOL = 1001
LARGEST_PICKLE = 2**24  # bytes: names and shapes of a few thousand tensors take a hundredth of it
STORAGES = {  # PyTorch's names of types of numbers: NumPy's, little-endian
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<?",
}


class _Storage(NamedTuple):
    """Numbers that one or several tensors share: their type, the name in the file, and how many there are."""

    dtype: str
    key: str
    size: int


class _Tensor(NamedTuple):
    """Where a tensor's numbers begin in a storage, counted in numbers, its shape, and the steps between them."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Refused(ValueError):
    """Content that a file of tensors does not have."""


def _tensor(storage, offset, shape, strides, *_) -> _Tensor:
    tensor = _Tensor(storage, offset, tuple(shape), tuple(strides))
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    if not isinstance(storage, _Storage) or not all(type(number) is int and number >= 0 for number in numbers):
        raise _Refused("a tensor's place is not a storage with whole numbers")
    last = offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides))
    count = math.prod(tensor.shape)
    if len(tensor.shape) != len(tensor.strides) or count > storage.size or (count and last >= storage.size):
        raise _Refused(f"a tensor of shape {list(tensor.shape)} does not lie in its storage of {storage.size} numbers")
    return tensor


def _parameter(tensor, *_) -> _Tensor:
    return tensor


class _Reader(pickle.Unpickler):
    """An unpickler that knows the names in `CALLED` and the storages, and refuses every other name."""

    CALLED = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_parameter"): _parameter,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.CALLED:
            return self.CALLED[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise _Refused(f"it asks for {module}.{name}")

    def persistent_load(self, described: Any) -> _Storage:
        tag, dtype, key, _, size, *_ = described
        if tag != "storage" or dtype not in STORAGES.values() or not isinstance(key, str) or type(size) is not int:
            raise _Refused("a storage is described in another way")
        return _Storage(dtype, key, size)


def open_torch(path: str | pathlib.Path) -> WeightFile:
    """Opens PyTorch's file of a dictionary {name: tensor}.

    Raises `UserError` if it is missing, damaged, or holds anything but tensors.
    """
    path = pathlib.Path(path)
    try:
        with open(path, "rb") as file:
            open_form = _open_archive if zipfile.is_zipfile(file) else _open_pickles
            file.seek(0)
            tensors, read = open_form(file, path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except _Refused as refusal:
        raise UserError(
            f"{path} is not read: {refusal}. Expected PyTorch's file of a dictionary of tensors (a state_dict)."
        ) from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises nearly any error
        raise UserError(f"{path} is not a file of PyTorch's tensors or is damaged: {first_line(error)}.") from None
    return WeightFile(path, {name: tensor.shape for name, tensor in tensors.items()}, lambda name: read(tensors[name]))


def _open_archive(file: BinaryIO, path: pathlib.Path) -> tuple[dict[str, _Tensor], Callable]:
    with zipfile.ZipFile(file) as archive:
        inside = {name.partition("/")[2]: archive.getinfo(name) for name in archive.namelist()}
        if "data.pkl" not in inside:
            raise _Refused("the archive holds no data.pkl")
        if "byteorder" in inside and archive.read(inside["byteorder"]) != b"little":
            raise _Refused("its numbers are big-endian")
        if inside["data.pkl"].file_size > LARGEST_PICKLE:
            raise _Refused("its data.pkl is larger than names and shapes are")
        with archive.open(inside["data.pkl"]) as content:
            tensors = _tensors(_Reader(content).load())
    for storage in {tensor.storage for tensor in tensors.values()}:
        member = inside.get(f"data/{storage.key}")
        size = storage.size * np.dtype(storage.dtype).itemsize
        if member is None or member.file_size != size:
            raise _Refused(f"storage {storage.key} is missing or not {size} bytes large")

    def numbers(storage: _Storage) -> np.ndarray:
        with zipfile.ZipFile(path) as archive:
            return np.frombuffer(archive.read(inside[f"data/{storage.key}"]), storage.dtype)

    return tensors, lambda tensor: _view(numbers(tensor.storage), tensor)


def _open_pickles(file: BinaryIO, path: pathlib.Path) -> tuple[dict[str, _Tensor], Callable]:
    if (_Reader(file).load(), _Reader(file).load()) != (MAGIC, PROTOCOL):
        raise _Refused("it does not begin as PyTorch's files do")
    if not _Reader(file).load().get("little_endian"):
        raise _Refused("its numbers are big-endian")
    tensors = _tensors(_Reader(file).load())
    keys = _Reader(file).load()
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    file_size = path.stat().st_size
    begins = {}
    for key in keys:
        if key not in storages:
            raise _Refused(f"no tensor has its storage {key!r}")
        (count,) = struct.unpack("<q", file.read(8))
        begins[key] = file.tell()
        end = begins[key] + count * np.dtype(storages[key].dtype).itemsize
        if count != storages[key].size or end > file_size:
            raise _Refused(f"storage {key} is cut off or not {storages[key].size} numbers large")
        file.seek(end)
    if missing := storages.keys() - begins.keys():
        raise _Refused(f"storage {min(missing)} is missing")

    def numbers(storage: _Storage) -> np.ndarray:
        if not storage.size:
            return np.zeros(0, storage.dtype)
        return np.memmap(path, storage.dtype, "r", begins[storage.key], (storage.size,))

    return tensors, lambda tensor: _view(numbers(tensor.storage), tensor)


def _tensors(content: Any) -> dict[str, _Tensor]:
    if isinstance(content, dict) and set(content) == {"state_dict"}:
        content = content["state_dict"]
    if isinstance(content, dict):
        has_names = all(isinstance(name, str) for name in content)
        if has_names and all(isinstance(tensor, _Tensor) for tensor in content.values()):
            return dict(content)
    raise _Refused("it holds something else than a dictionary of tensors")


def _view(numbers: np.ndarray, tensor: _Tensor) -> np.ndarray:
    """The numbers of a tensor, whose place `_tensor` has checked, as an array of its own."""
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, numbers.dtype)
    strides = [step * numbers.itemsize for step in tensor.strides]
    return np.array(np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides, writeable=False))
