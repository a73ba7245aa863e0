"""Files of trained weights as {name: shape} and `read(name)`, one tensor at a time: safetensors, TensorFlow, HDF5, npz.

Pickles (`pytorch_model.bin`, `.pt`, `.ckpt` of PyTorch) are never opened: loading one can run any code that is in it.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from mural_lite.errors import UserError, first_line
from mural_lite.files import json_field, read_json
from mural_lite.hugging_face import PICKLES

MOST_DEFLATED = 1100  # the most bytes that a compressed byte may hold; deflate's own bound is 1,032
BLOCK = 2**24  # bytes of a large table that are read at a time
# What libraries raise at damaged files; TensorFlow an IndexError where a checkpoint is cut off.
DAMAGED = (OSError, ValueError, EOFError, IndexError, zipfile.BadZipFile, zlib.error, tf.errors.OpError)
SAFETENSORS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
CONVERSION = (
    "Such files are pickles, which can run any code when they are opened, so they are not read here. If you trust "
    "{pickle}, make {wanted} of it once, where PyTorch is installed: docs/checkpoints.md has the line."
)


class WeightFile:
    """A file of weights by names.

    Args:
      path: the file, for messages.
      shapes: {name: shape} of all tensors in the file.
      read: takes a name, and returns the tensor as an array of any float type.
      read_blocks: takes a name and a number of rows, and yields the tensor in blocks of so many rows; `None`: the
        tensor can only be read whole.
    """

    def __init__(
        self,
        path: str | pathlib.Path,
        shapes: dict[str, tuple[int, ...]],
        read: Callable,
        read_blocks: Callable | None = None,
    ):
        self.path = path
        self.shapes = shapes
        self._read = read
        self._read_blocks = read_blocks

    def read(self, name: str) -> np.ndarray:
        """Returns the tensor `name` as float32; raises `UserError` if it is damaged or not finite."""
        with self._reading(name):
            return self._checked(name, self._read(name))

    def blocks(self, name: str) -> Iterator[np.ndarray]:
        """Yields the rows of the tensor `name` as float32, `BLOCK` bytes at a time where the file allows.

        Raises as `read`.
        """
        rows = max(1, BLOCK // (4 * math.prod(self.shapes[name][1:])))  # 4 bytes a number
        with self._reading(name):
            if self._read_blocks is None:
                blocks = [self._read(name)]
            else:
                blocks = self._read_blocks(name, rows)
            for block in blocks:
                yield self._checked(name, block)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Raises `UserError` in place of the libraries' errors in the `with` block, which reads the tensor `name`."""
        try:
            yield
        except UserError:
            raise
        except DAMAGED as error:
            raise UserError(f"{self.path}: {name} cannot be read ({first_line(error)}).") from None

    def _checked(self, name: str, tensor) -> np.ndarray:
        """Returns a tensor, an array of any float type, as float32; raises `UserError` where it is not finite."""
        tensor = np.asarray(tensor).astype(np.float32, copy=False)
        if tensor.size and not np.isfinite([tensor.min(), tensor.max()]).all():  # `isfinite` of all would take memory
            raise UserError(f"{self.path}: {name} holds NaN or infinity; its training diverged.")
        return tensor

    @property
    def size(self) -> int:
        """How many numbers all tensors hold."""
        return sum(map(math.prod, self.shapes.values()))

    def count(self, pattern: str) -> int:
        """Returns how many tensors have names that a regular expression matches as a whole."""
        return len([name for name in self.shapes if re.fullmatch(pattern, name)])

    def shape_of(self, name: str, rank: int, expected: str) -> tuple[int, ...]:
        """Returns the shape of the tensor `name`.

        Raises `UserError` if it is missing, or has another number of axes than `rank`; `expected` is the model of such
        a file, for the message.
        """
        shape = self.shapes.get(name, ())
        if len(shape) != rank:
            raise UserError(f"{self.path} has no {name} of {rank} axes: expected the names of {expected}.")
        return shape

    def renamed(self, rename: Callable[[str], str]) -> WeightFile:
        """Returns the same weights under other names; `rename` takes a name in the file and returns the new name."""
        return self._with_names({rename(name): name for name in self.shapes})

    def below(self, prefix: str) -> WeightFile:
        """Returns the weights whose names begin with a prefix, under their names without it."""
        return self._with_names({name.removeprefix(prefix): name for name in self.shapes if name.startswith(prefix)})

    def _with_names(self, originals: dict[str, str]) -> WeightFile:
        """Returns the weights that `originals`, {new name: name in this file}, names."""

        def read(name: str):
            return self._read(originals[name])

        def read_blocks(name: str, rows: int) -> Iterator:
            return self._read_blocks(originals[name], rows)

        shapes = {name: self.shapes[original] for name, original in originals.items()}
        if self._read_blocks is None:
            return WeightFile(self.path, shapes, read)
        return WeightFile(self.path, shapes, read, read_blocks)


def open_safetensors(path: str | pathlib.Path) -> WeightFile:
    """Opens a safetensors file, or a folder's `model.safetensors` or its shards.

    Raises `UserError` if it is missing or damaged, or there are only pickles.
    """
    path = pathlib.Path(path)
    if path.suffix in PICKLES:
        raise UserError(f"{path} is not opened. {CONVERSION.format(pickle=path, wanted=SAFETENSORS)}")
    if path.is_file():
        return _open_shards(path, [path])
    if (path / SAFETENSORS).is_file():
        return _open_shards(path / SAFETENSORS, [path / SAFETENSORS])
    index = path / SHARDS
    if index.is_file():
        names = set(json_field(read_json(index), "weight_map", dict[str, str], index).values())
        # Shards lie next to their index: no folder that it may name is entered.
        return _open_shards(index, [path / pathlib.PurePath(name).name for name in sorted(names)])
    raise UserError(_missing_safetensors(path))


def _missing_safetensors(path: pathlib.Path) -> str:
    """Returns the message for a file or folder without safetensors, which names the pickles that are there instead."""
    folder = path
    file_name = SAFETENSORS
    if not path.is_dir():
        folder = path.parent
        file_name = path.name
        if path.suffix != ".safetensors" or not folder.is_dir():
            return f"{path} does not exist; give a folder with {SAFETENSORS}."
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if not pickles:
        return f"{folder} has neither {file_name} nor {SHARDS}."
    hint = CONVERSION.format(pickle=pickles[0], wanted=file_name)
    return f"{folder} has no {file_name}, only {', '.join(pickles[:3])}. {hint}"


def _open_shards(path: pathlib.Path, shards: list[pathlib.Path]) -> WeightFile:
    """Opens the safetensors files `shards` as one file of weights; `path`, the file or its index, is for messages.

    Raises `UserError` if a shard is missing or damaged, or the package safetensors is missing.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UserError(f"Reading {path} needs the package safetensors: pip install safetensors.") from None
    files = {}  # {tensor's name: its opened file}
    shapes = {}
    for shard in shards:
        try:
            file = safe_open(str(shard), framework="numpy")
            tensorflow_file = safe_open(str(shard), framework="tf")  # NumPy has no bfloat16
            for name in file.keys():
                tensor = file.get_slice(name)
                files[name] = tensorflow_file if tensor.get_dtype() == "BF16" else file
                shapes[name] = tuple(tensor.get_shape())
        except FileNotFoundError:
            raise UserError(f"{shard} is missing; {path.name} names it.") from None
        except (SafetensorError, *DAMAGED) as error:
            raise UserError(f"{shard} is damaged or no safetensors file: {first_line(error)}") from None

    def blocks(name: str, rows: int) -> Iterator:
        """Yields the tensor `name` in blocks of up to `rows` rows."""
        tensor = files[name].get_slice(name)
        count = shapes[name][0]
        return (_as_numpy(tensor[first : min(first + rows, count)]) for first in range(0, count, rows))

    return WeightFile(path, shapes, lambda name: _as_numpy(files[name].get_tensor(name)), blocks)


def _as_numpy(tensor) -> np.ndarray:
    """Returns a tensor as an array: NumPy's as it is, TensorFlow's, whose bfloat16 NumPy lacks, in float32."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return tf.cast(tensor, tf.float32).numpy()


def open_tensorflow_checkpoint(prefix: str | pathlib.Path) -> WeightFile:
    """Opens a TF1 or TF2 checkpoint by its prefix, for example `model.ckpt`.

    Raises `UserError` if it is missing or damaged.
    """
    try:
        _check_footer(pathlib.Path(f"{prefix}.index"))
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    except (RuntimeError, *DAMAGED) as error:
        reason = first_line(error)
        raise UserError(f"{prefix} is not a TensorFlow checkpoint or is damaged: {reason}") from None
    prefix = pathlib.Path(prefix)
    stored_bytes = sum(file.stat().st_size for file in prefix.parent.glob(f"{prefix.name}.data-*"))
    for name, shape in shapes.items():
        if math.prod(shape) > stored_bytes:  # a number takes at least one byte
            raise UserError(f"{prefix}: {name} has the shape {list(shape)} and only {stored_bytes} bytes.")
    return WeightFile(prefix, shapes, reader.get_tensor)


def _check_footer(index: pathlib.Path) -> None:
    """Raises `ValueError` for an index file whose footer names blocks beyond its end: TensorFlow would allocate them.

    An index is a table of LevelDB: its last 48 bytes hold offset and size of two blocks, as varints, and 8 bytes that
    mark the format.
    """
    if not index.is_file():  # TensorFlow reports it, or it is a TF1 checkpoint of a single file
        return
    length = index.stat().st_size
    numbers = _varints(index.read_bytes()[-48:-8])
    if len(numbers) < 4:
        raise ValueError("its index is damaged or cut off")
    first_offset, first_size, second_offset, second_size = numbers[:4]
    if first_offset + first_size > length or second_offset + second_size > length:
        raise ValueError("its index is damaged or cut off")


def _varints(data: bytes) -> list[int]:
    """Returns the complete varints in `data`: 7 bits per byte, lowest first; the high bit says that more follow."""
    numbers = []
    number = 0
    shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = 0
            shift = 0
    return numbers


def open_keras_h5(path: str | pathlib.Path) -> WeightFile:
    """Opens the HDF5 file of Keras' `save_weights` or `save`; names are the variables' names, without ":0".

    Raises `UserError` if it is missing, damaged, not Keras', or takes numbers from other files.
    """
    import h5py

    def weight(group: h5py.Group, name: str) -> h5py.Dataset:
        """Returns the weight `name` of a layer; raises `ValueError` if it holds no numbers of this file."""
        dataset = group[name]  # "fiu": floats, integers, unsigned integers
        if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiu" or dataset.shape is None:
            raise ValueError(f"{name} holds no numbers")
        # HDF5 would take any file of this machine for a weight.
        if dataset.external or dataset.is_virtual or dataset.file.filename != file.filename:
            raise ValueError(f"{name} lies in another file")
        return dataset

    try:
        file = h5py.File(path, "r")
        root = file["model_weights"] if "model_weights" in file else file
        datasets = {}
        for layer in root.attrs["layer_names"]:
            group = root[layer]
            for name in group.attrs["weight_names"]:
                datasets[_text(name).split(":")[0]] = weight(group, name)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except Exception as error:  # h5py has no error of its own: a hostile file raises nearly any
        reason = first_line(error)
        raise UserError(f"{path} is not an HDF5 file of Keras weights or is damaged: {reason}") from None
    shapes = {name: tuple(dataset.shape) for name, dataset in datasets.items()}
    return WeightFile(path, shapes, lambda name: datasets[name][()])


def _text(name: str | bytes) -> str:
    """Returns a name in HDF5, which h5py reads as bytes or text, as text."""
    return name.decode("utf-8") if isinstance(name, bytes) else name


def open_npz(path: str | pathlib.Path) -> WeightFile:
    """Opens a file of NumPy's `savez`, the form of big_vision's checkpoints.

    Only names below `params/` are read; big_vision keeps the optimiser's states next to them. Raises `UserError` if the
    file is missing or damaged, or an array is pickled.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        shapes = {name: _npy_shape(archive, name) for name in archive.files if name.startswith("params/")}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except Exception as error:  # noqa: BLE001 - NumPy and zipfile raise many classes on damaged files
        raise UserError(f"{path} is no .npz file of weights or is damaged: {first_line(error)}") from None

    def blocks(name: str, rows: int) -> Iterator:
        """Yields blocks of `rows` rows; an array that is stored column by column is one block."""
        with archive.zip.open(f"{name}.npy") as file:
            shape, in_columns, dtype = _npy_header(file)
            if in_columns:
                yield archive[name]
                return
            size = math.prod(shape[1:]) * dtype.itemsize
            for first in range(0, shape[0], rows):
                count = min(rows, shape[0] - first)
                yield np.frombuffer(file.read(count * size), dtype).reshape(count, *shape[1:])

    return WeightFile(path, shapes, archive.__getitem__, blocks)


def _npy_shape(archive: np.lib.npyio.NpzFile, name: str) -> tuple[int, ...]:
    """Returns the shape of an archive's array, by its header.

    Raises `ValueError` for a pickled array, or a shape that needs more bytes than the array has.
    """
    entry = archive.zip.getinfo(f"{name}.npy")
    with archive.zip.open(entry) as file:
        shape, _, dtype = _npy_header(file)
    if dtype.hasobject:
        raise ValueError(f"{name} is pickled")
    stored_bytes = min(entry.file_size, MOST_DEFLATED * entry.compress_size)
    if math.prod(shape) * dtype.itemsize > stored_bytes:
        raise ValueError(f"{name} has the shape {list(shape)} and only {entry.compress_size} bytes")
    return shape


def _npy_header(file) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Returns the header of an .npy file: (shape, whether the array is stored column by column, dtype)."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
