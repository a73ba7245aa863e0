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
import pickletools
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
MOST_OPCODES = 2**20  # a tensor takes about thirty
MOST_NESTED = 16  # containers inside each other; PyTorch's tensors take six
OPCODES = {  # that PyTorch writes, also on Python 2
    "PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "NONE", "NEWTRUE", "NEWFALSE",
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "BINSTRING",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_DICT", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
}  # fmt: skip
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
    """Raised for content that a file of tensors does not have."""


def _tensor(storage, offset, shape, strides, *_) -> _Tensor:
    """Returns the `_Tensor` of these arguments, in place of PyTorch's `_rebuild_tensor_v2`.

    Raises `_Refused` for a tensor that does not lie in its storage.
    """
    tensor = _Tensor(storage, offset, tuple(shape), tuple(strides))
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    are_whole = all(type(number) is int and number >= 0 for number in numbers)
    if not isinstance(storage, _Storage) or not are_whole:
        raise _Refused("a tensor's place is not a storage with whole numbers")
    last_place = offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides))
    count = math.prod(tensor.shape)
    ends_behind = count > 0 and last_place >= storage.size
    if len(tensor.shape) != len(tensor.strides) or count > storage.size or ends_behind:
        raise _Refused(f"a tensor of shape {list(tensor.shape)} does not lie in its storage of {storage.size} numbers")
    return tensor


def _parameter(tensor, *_) -> _Tensor:
    """Returns the tensor of a parameter, in place of PyTorch's `_rebuild_parameter`."""
    return tensor


class _Reader(pickle.Unpickler):
    """An unpickler that knows the names in `CALLED` and `STORAGES`, and raises `_Refused` for every other name."""

    CALLED = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_parameter"): _parameter,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Returns the object that the pickle calls `module.name`; raises `_Refused` for other names."""
        if (module, name) in self.CALLED:
            return self.CALLED[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise _Refused(f"it asks for {module}.{name}")

    def persistent_load(self, description: Any) -> _Storage:
        """Returns the storage that ("storage", type, key, device, size) describes; raises `_Refused` otherwise."""
        tag, dtype, key, _, size, *_ = description
        if tag != "storage" or dtype not in STORAGES.values() or not isinstance(key, str) or type(size) is not int:
            raise _Refused("a storage is described in another way")
        return _Storage(dtype, key, size)


def _load(file: BinaryIO) -> Any:
    """Returns the content of the pickle that begins at the file's position; raises `_Refused` if it is not allowed."""
    begin = file.tell()
    _check_opcodes(file)
    file.seek(begin)
    return _Reader(file).load()


def _check_opcodes(file: BinaryIO) -> None:
    """Raises `_Refused` at opcodes that PyTorch does not write, and where the unpickler itself would go astray.

    Tuples in tuples, a million deep, end the process as soon as they are hashed, and an index of 2^31 in the table of
    repeated objects allocates that table. So the unpickler's stack is followed with depths in place of objects: how
    many containers are inside each other, 0 for a number or a text.
    """
    stack: list[int | None] = []  # the depth of each object; `None`: a mark, above which a container's content begins
    repeated: dict[int, int] = {}  # {index of a repeated object: its depth}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if opcode.name not in OPCODES or count >= MOST_OPCODES:
            raise _Refused(f"PyTorch's files have no {opcode.name} in their pickles, or fewer of it")
        if "PUT" in opcode.name:
            if argument > count:
                raise _Refused(f"it numbers {count} objects up to {argument}")
            repeated[argument] = stack[-1] or 0
        elif "BINGET" in opcode.name:
            stack.append(repeated[argument])
        elif opcode.name == "MARK":
            stack.append(None)
        elif opcode.stack_after:
            depth = _depth_of_result(opcode, _pop_operands(opcode, stack))
            if depth > MOST_NESTED:
                raise _Refused(f"it has more than {MOST_NESTED} containers inside each other")
            stack.append(depth)


def _pop_operands(opcode: pickletools.OpcodeInfo, stack: list[int | None]) -> list[int]:
    """Takes an opcode's operands off the stack of `_check_opcodes`, and returns their depths, the topmost first."""
    depths: list[int] = []
    if pickletools.stackslice in opcode.stack_before:  # all objects above the last mark
        while stack[-1] is not None:
            depths.append(stack.pop())
        stack.pop()  # the mark
    above_mark = (pickletools.markobject, pickletools.stackslice)
    single_operands = [operand for operand in opcode.stack_before if operand not in above_mark]
    return depths + [stack.pop() or 0 for _ in single_operands]


def _depth_of_result(opcode: pickletools.OpcodeInfo, operands: list[int]) -> int:
    """Returns the depth of an opcode's result by its operands' depths, in the order of `_pop_operands`."""
    if opcode.name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"):  # these fill the last operand
        *content, container = operands
        return max(container, 1 + max(content, default=0))
    return 1 + max(operands, default=-1)  # 0 without operands


def open_torch(path: str | pathlib.Path) -> WeightFile:
    """Opens a file in which PyTorch saved a dictionary {name: tensor}, without running anything of it.

    Raises `UserError` if it is missing, damaged, or holds anything but tensors.
    """
    path = pathlib.Path(path)
    try:
        with open(path, "rb") as file:
            is_archive = zipfile.is_zipfile(file)
            file.seek(0)
            if is_archive:
                tensors, read_tensor = _open_archive(file, path)
            else:
                tensors, read_tensor = _open_pickles(file, path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except _Refused as refusal:
        raise UserError(
            f"{path} is not read: {refusal}. Expected PyTorch's file of a dictionary of tensors (a state_dict)."
        ) from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises nearly any error
        raise UserError(f"{path} is not a file of PyTorch's tensors or is damaged: {first_line(error)}.") from None
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return WeightFile(path, shapes, lambda name: read_tensor(tensors[name]))


def _open_archive(file: BinaryIO, path: pathlib.Path) -> tuple[dict[str, _Tensor], Callable]:
    """Returns ({name: tensor}, the function from such a tensor to an array) for a ZIP archive, since PyTorch 1.6.

    `file` is the opened file at `path`. Raises `_Refused` for another archive.
    """
    with zipfile.ZipFile(file) as archive:
        members = {name.partition("/")[2]: archive.getinfo(name) for name in archive.namelist()}  # below its folder
        if "data.pkl" not in members:
            raise _Refused("the archive holds no data.pkl")
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise _Refused("its numbers are big-endian")
        if members["data.pkl"].file_size > LARGEST_PICKLE:
            raise _Refused("its data.pkl is larger than names and shapes are")
        with archive.open(members["data.pkl"]) as content:
            tensors = _tensors(_load(content))
    for storage in {tensor.storage for tensor in tensors.values()}:
        member = members.get(f"data/{storage.key}")
        size = storage.size * np.dtype(storage.dtype).itemsize
        if member is None or member.file_size != size:
            raise _Refused(f"storage {storage.key} is missing or not {size} bytes large")

    def read(tensor: _Tensor) -> np.ndarray:
        with zipfile.ZipFile(path) as archive:
            content = archive.read(members[f"data/{tensor.storage.key}"])
        return _view(np.frombuffer(content, tensor.storage.dtype), tensor)

    return tensors, read


def _open_pickles(file: BinaryIO, path: pathlib.Path) -> tuple[dict[str, _Tensor], Callable]:
    """Returns ({name: tensor}, the function from such a tensor to an array) for a file from before PyTorch 1.6.

    It is five pickles, one after the other, and each storage's count and bytes. `file` is the opened file at `path`.
    Raises `_Refused` for another file.
    """
    magic = _load(file)
    protocol = _load(file)
    if magic != MAGIC or protocol != PROTOCOL:
        raise _Refused("it does not begin as PyTorch's files do")
    if not _load(file).get("little_endian"):
        raise _Refused("its numbers are big-endian")
    tensors = _tensors(_load(file))
    keys = _load(file)
    storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
    file_size = path.stat().st_size
    begins = {}  # {storage's key: where its bytes begin in the file}
    for key in keys:
        if key not in storages:
            raise _Refused(f"no tensor has its storage {key!r}")
        (count,) = struct.unpack("<q", file.read(8))
        begins[key] = file.tell()
        end = begins[key] + count * np.dtype(storages[key].dtype).itemsize
        if count != storages[key].size or end > file_size:
            raise _Refused(f"storage {key} is cut off or not {storages[key].size} numbers large")
        file.seek(end)
    missing = storages.keys() - begins.keys()
    if missing:
        raise _Refused(f"storage {min(missing)} is missing")

    def read(tensor: _Tensor) -> np.ndarray:
        _, key, size = tensor.storage
        numbers = np.zeros(0, tensor.storage.dtype)
        if size:  # an empty part cannot be mapped
            numbers = np.memmap(path, tensor.storage.dtype, "r", begins[key], (size,))
        return _view(numbers, tensor)

    return tensors, read


def _tensors(content: Any) -> dict[str, _Tensor]:
    """Returns the {name: tensor} in an unpickled state_dict, or in {"state_dict": …}; otherwise raises `_Refused`."""
    if isinstance(content, dict) and set(content) == {"state_dict"}:
        content = content["state_dict"]
    if isinstance(content, dict):
        has_names = all(isinstance(name, str) for name in content)
        if has_names and all(isinstance(tensor, _Tensor) for tensor in content.values()):
            return dict(content)
    raise _Refused("it holds something else than a dictionary of tensors")


def _view(numbers: np.ndarray, tensor: _Tensor) -> np.ndarray:
    """Returns a tensor as an array of its own, of its storage's `numbers`; `_tensor` has checked where it lies."""
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, numbers.dtype)
    strides = [step * numbers.itemsize for step in tensor.strides]
    return np.array(np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides, writeable=False))
