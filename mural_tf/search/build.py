"""Makes an index: encodes what the sources hold, in memory or part by part into a folder.

While an index is made, `<output>/building/` holds a plan (what was asked for), the model's probes, and for each part an
array of vectors and a list of what it consumed. The same command continues after them, so that an interrupted run loses
at most one part; at the end they are joined.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from tqdm import tqdm

from mural_tf.data import pictures
from mural_tf.embedder import Embedder
from mural_tf.errors import UserError
from mural_tf.files import exclusive_lock, read_json, save_array, whole, write_whole
from mural_tf.search import approximate, collect
from mural_tf.search import index as index_files
from mural_tf.search.collect import Found, Unreadable
from mural_tf.search.index import Fingerprint, Index, take
from mural_tf.search.items import IMAGES, Item, from_json, read_array, read_image, to_json, write_items

BUILDING, PLAN = "building", "plan.json"
DTYPES = ("float32", "float16")


class Parts:
    """The unfinished index in `output`: new, or that of an interrupted run of the same command.

    Args:
      output: a folder that is missing, empty or holds an unfinished index.
      asked: what the index is of: kind, sources, split, dtype.
      model: of its vectors.
      complete: the complete index in `output`, if it is to grow; it stays in use until the parts are joined.

    Raises:
      UserError: the folder holds something else, or an unfinished index of something else, or another
        process is making it.
    """

    def __init__(self, output: pathlib.Path, asked: dict, model: Fingerprint, complete: Index | None = None):
        self.output, self.asked, self.model = output, asked, model
        self.folder = output / BUILDING
        plan, probes = self.folder / PLAN, self.folder / index_files.PROBES
        foreign = output.exists() and (not output.is_dir() or any(path != self.folder for path in output.iterdir()))
        if foreign and not plan.exists() and complete is None:
            raise UserError(f"{output} is neither empty nor an index; choose a new folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = contextlib.ExitStack()  # two processes that save parts of one number would lose one's
        busy = f"Another process is making the index {output}; wait for it."
        self._lock.enter_context(exclusive_lock(self.folder / "lock", busy))
        if plan.exists():
            check_asked(output, read_json(plan), asked)
            before = Fingerprint(read_array(probes), "of the interrupted run")
            before.check(model, f"The unfinished index {output}")
            return
        for begun in self._paths():  # of a process that was killed on this very line
            begun.unlink()
        if complete is not None:
            self.save([complete.describe(row) for row in range(len(complete))], complete.embeddings, ())
        save_array(probes, model.probes)
        write_whole(plan, json.dumps(asked, indent=2) + "\n")

    def close(self) -> None:
        """Lets other processes go on with the parts."""
        self._lock.close()

    def discard(self) -> None:
        """Removes the parts."""
        self.close()
        shutil.rmtree(self.folder)

    def count(self) -> int:
        """Returns how many items the parts hold."""
        return sum(len(array) for array in self._arrays())

    def keys(self) -> set[tuple[str, ...]]:
        """Returns the keys of everything in the saved parts, the unreadable too."""
        kind = self.asked["kind"]
        entries = (entry for path in self._paths() for entry in _read(path))
        return {entry.key if isinstance(entry, Unreadable) else collect.key_of(kind, entry) for entry in entries}

    def save(self, items: Sequence[Item], embeddings: np.ndarray, unreadable: Sequence[Unreadable]) -> None:
        """Saves one part: its items, their vectors [N, D], and what could not be read."""
        path = self.folder / f"part-{len(self._paths()):06d}.jsonl"
        save_array(path.with_suffix(".npy"), embeddings.astype(self.asked["dtype"]))
        lines = [to_json(item) for item in items]
        lines += [json.dumps({"unreadable": [*entry]}).encode() + b"\n" for entry in unreadable]
        with whole(path) as partial:  # last: with its list the part counts
            partial.write_bytes(b"".join(lines))

    def put_together(self) -> None:
        """Writes the index; its description last, so that an index that has one is complete."""
        arrays, count = self._arrays(), self.count()
        unreadable = [entry for path in self._paths() for entry in _read(path) if isinstance(entry, Unreadable)]
        if not count:
            self.discard()
            raise UserError(f"None of the {len(unreadable)} {self.asked['kind']} can be read.")
        for name in (index_files.DESCRIPTION, approximate.REPORT, approximate.FILE):  # of an index that grows
            (self.output / name).unlink(missing_ok=True)
        items = (entry for path in self._paths() for entry in _read(path) if isinstance(entry, Item))
        write_items(self.output / index_files.ITEMS, map(to_json, items))
        with whole(self.output / index_files.EMBEDDINGS) as partial:
            shape = (count, self.model.probes.shape[1])
            matrix = np.lib.format.open_memmap(partial, "w+", self.asked["dtype"], shape)
            np.concatenate(arrays, out=matrix)
            matrix.flush()
        save_array(self.output / index_files.PROBES, self.model.probes)
        table = "".join(f"{_one_line(entry.name)}\t{_one_line(entry.reason)}\n" for entry in unreadable)
        write_whole(self.output / index_files.SKIPPED, table)
        write_whole(self.output / index_files.DESCRIPTION, self._description(count, len(unreadable)))
        self.discard()

    def _description(self, count: int, skipped: int) -> str:
        path = os.path.abspath(self.model.path) if self.model.path else ""
        description = {
            "format": index_files.FORMAT,
            **self.asked,
            "count": count,
            "skipped": skipped,
            "embedding_size": int(self.model.probes.shape[1]),
            "model": {"path": path, "step": self.model.step, "identity": str(self.model)},
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        return json.dumps(description, indent=2, ensure_ascii=False) + "\n"

    def _arrays(self) -> list[np.ndarray]:
        return [read_array(path.with_suffix(".npy"), mmap_mode="r") for path in self._paths()]

    def _paths(self) -> list[pathlib.Path]:
        return sorted(self.folder.glob("part-*.jsonl"))


def check_asked(output: pathlib.Path, before: dict, asked: dict) -> None:
    """Raises `UserError` unless the index in `output` is the one that was asked for."""
    changed = {key: value for key, value in asked.items() if before.get(key) != value}
    differing = [f"{key} {before.get(key)!r}, not {value!r}" for key, value in changed.items()]
    if differing:
        raise UserError(
            f"{output} already holds an index of {'; '.join(differing)}: choose another folder, or delete this one."
        )


def _read(path: pathlib.Path) -> Iterator[Item | Unreadable]:
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                if line.startswith(b'{"unreadable"'):
                    name, reason, key = json.loads(line)["unreadable"]
                    yield Unreadable(name, reason, tuple(key))
                else:
                    yield from_json(line)
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(
                    f"Line {number} of {path} is damaged ({error}): delete {path.parent} and index again."
                ) from None


def _one_line(text: str) -> str:
    return " ".join(text.split())


PART = 1024  # items between two saves


def index_in_memory(
    embedder: Embedder,
    found: Iterable[Found],
    kind: str = IMAGES,
    batch_size: int = 64,
    progress: bool | None = None,
) -> Index:
    """Encodes what `collect.find` yields into an index that lives in memory.

    Raises `UserError` if nothing can be read.
    """
    items, embeddings, skipped = _encode(embedder, _distinct(kind, found, set()), kind, batch_size, progress)
    if not items:
        raise UserError(f"None of the {len(skipped)} {kind} can be read.")
    return Index(items, embeddings, take(embedder), kind, skipped=len(skipped))


def build_index(
    embedder: Embedder,
    names: Sequence[str],
    output: str | os.PathLike,
    kind: str = IMAGES,
    split: str = "",
    dtype: str = "float32",
    batch_size: int = 64,
    update: bool = False,
    part: int = PART,
    progress: bool = False,
) -> Index:
    """Makes the index `output`, or continues an interrupted run; a complete one is opened as it is.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`.
      names: folders, globs, TFRecords or tables, see `collect.find`.
      kind, split: what of them.
      dtype: of the stored vectors, "float32" or "float16" (half the size; scores change by about 1e-4).
      batch_size: images per call of the model.
      update: add to a complete index what its sources hold by now; its approximate part goes. Nothing is taken out.
      part: items between two saves.

    Raises:
      UserError: sources that hold nothing, a folder that is something else, an index of other sources or of
        another model, nothing that can be read.
    """
    if dtype not in DTYPES:
        raise UserError(f"Unknown dtype {dtype!r}; known: {', '.join(DTYPES)}.")
    found = collect.find(kind, names, split)  # mistakes show before anything is written
    output, model = pathlib.Path(output), take(embedder)
    asked = {"kind": kind, "sources": [os.path.abspath(name) for name in names], "split": split, "dtype": dtype}
    complete = None
    if (output / index_files.DESCRIPTION).exists():
        check_asked(output, index_files.read_description(output), asked)
        complete = index_files.load_index(output)
        complete.model.check(model, f"The index {output}")
        if not update:
            return complete
    parts = Parts(output, asked, model, complete)
    try:
        _save_parts(parts, embedder, found, batch_size, part, progress)
        if complete is not None and parts.count() == len(complete):  # nothing is new
            parts.discard()
            return complete
        parts.put_together()
    finally:
        parts.close()
    return index_files.load_index(output)


def _save_parts(parts: Parts, embedder, found: Iterable, batch_size: int, part: int, progress: bool) -> None:
    """Encodes and saves what the parts lack."""
    kind, done = parts.asked["kind"], parts.keys()
    with tqdm(desc=f"Indexing {kind}", unit=f" {kind}", initial=len(done), disable=not progress) as bar:
        new = _distinct(kind, found, done, bar.update)
        for first in new:
            chunk = itertools.chain([first], itertools.islice(new, part - 1))
            parts.save(*_encode(embedder, chunk, kind, batch_size))


def _distinct(kind: str, found: Iterable, done: set, tell: Callable[[], object] = lambda: None) -> Iterator:
    """Leaves out what was found before; `done` grows."""
    for entry in found:
        key = entry.key if isinstance(entry, Unreadable) else collect.key_of(kind, entry[0])
        if key not in done:
            done.add(key)
            tell()
            yield entry


def _encode(embedder, found: Iterable, kind: str, batch_size: int, progress=False):
    """Returns (items, float32 [N, D], unreadable ones) of what was found; images stream through the encoder."""
    items: list[Item] = []
    unreadable: list[Unreadable] = []

    def contents():
        for entry in found:
            if isinstance(entry, Unreadable):
                unreadable.append(entry)
            else:
                items.append(entry[0])
                yield entry[1]

    if kind == IMAGES:
        embeddings, kept = embedder.encode_image(
            contents(), batch_size=batch_size, on_error="skip", progress=bool(progress)
        )
    else:
        embeddings = embedder.encode_text(list(contents()), batch_size=batch_size, progress=bool(progress))
        kept = np.arange(len(items))
    readable = set(kept.tolist())
    unreadable += [_why(kind, item) for row, item in enumerate(items) if row not in readable]
    return [items[row] for row in kept], embeddings, unreadable


def _why(kind: str, item: Item) -> Unreadable:
    try:
        pictures.for_the_encoder(read_image(item))
        reason = "damaged: it does not decode"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    return Unreadable(item.name, f"{reason[0].upper()}{reason[1:]}.", collect.key_of(kind, item))
