"""Numbers collected on disk by partition, so that counting over any amount of data takes bounded memory."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np

BUFFER = 1 << 16  # numbers kept in memory over all partitions


class Spool:
    """Rows of `width` 64-bit numbers, appended to one file per partition."""

    def __init__(self, folder: pathlib.Path, width: int = 1):
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir(parents=True)
        self.folder, self.width = folder, width
        self._buffers: dict[int, list[int]] = {}
        self._buffered = 0

    def add(self, partition: int, *numbers: int) -> None:
        """Appends one row."""
        self._buffers.setdefault(partition, []).extend(map(int, numbers))
        self._buffered += self.width
        if self._buffered >= BUFFER:
            self.close()

    def add_rows(self, partitions: np.ndarray, rows: np.ndarray) -> None:
        """Appends rows, uint64 [N, width], to the partitions [N]."""
        for partition in np.unique(partitions):
            with open(self._path(int(partition)), "ab") as file:
                file.write(rows[partitions == partition].tobytes())

    def remove(self) -> None:
        """Deletes the files."""
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Writes what is buffered."""
        for partition, numbers in self._buffers.items():
            with open(self._path(partition), "ab") as file:
                file.write(np.array(numbers, np.uint64).tobytes())
        self._buffers.clear()
        self._buffered = 0

    def read(self, partition: int) -> np.ndarray:
        """Returns a partition's rows: uint64 [N] or, where rows are wider, [N, width]."""
        path = self._path(partition)
        numbers = np.fromfile(path, np.uint64) if path.exists() else np.empty(0, np.uint64)
        return numbers if self.width == 1 else numbers.reshape(-1, self.width)

    def _path(self, partition: int) -> pathlib.Path:
        return self.folder / f"{partition:05d}.uint64"
