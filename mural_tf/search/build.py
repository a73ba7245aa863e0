"""Makes an index: encodes what the sources hold, in memory or shard by shard into a folder, or takes embeddings.

While an index is made, `<output>/building/` holds a plan (what was asked for), the model's probes, and shards as
`embed` writes them. The same command continues after them, so that an interrupted run loses at most one shard. At the
end they are joined, without rows of keys that came earlier, and without holding more than a few thousand rows.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import numpy as np
from tqdm import tqdm

from mural_tf.data.shards import Manifest, manifest_path, places_path, read_manifest
from mural_tf.errors import UserError
from mural_tf.files import as_path, exclusive_lock, json_field, publish, read_json, save_array, whole, write_whole
from mural_tf.files import read_array as load_array
from mural_tf.hashes import bytes_hash
from mural_tf.search import approximate, collect, confidence, embed
from mural_tf.search import index as index_files
from mural_tf.search.changes import BUILDING, JOINED, Changes, KnownRows, changing, with_content
from mural_tf.search.collect import Found, Piece, Seen
from mural_tf.search.embed import DTYPES, EmbedShard, array_header, encode, key_of
from mural_tf.search.index import Fingerprint, Index, take
from mural_tf.search.items import IMAGES, Item, forget, from_json, read_array, write_items

if TYPE_CHECKING:  # TensorFlow, which commands do without until they embed
    from mural_tf.embedder import Embedder

PLAN = "plan.json"
OF_ONE_STATE = (index_files.DESCRIPTION, index_files.REMOVED, approximate.REPORT, approximate.FILE, confidence.FILE)
ROWS = 4096  # that are in memory at a time


class Shard(NamedTuple):
    """Files of vectors and their items, in parallel; `skipped`: reason[TAB]place of what could not be read, or None."""

    vectors: pathlib.Path
    items: pathlib.Path
    skipped: pathlib.Path | None = None


class Parts:
    """The unfinished index in `output`: new, or that of an interrupted run of the same command.

    Args:
      output: a folder that is missing, empty or holds an unfinished index.
      asked: what the index is of: kind, sources, split, dtype.
      model: of its vectors.
      complete: the complete index in `output`, if it is to grow; it stays in use until the shards are joined.

    Raises:
      UserError: the folder holds something else, or an unfinished index of something else, or another
        process is making it.
    """

    def __init__(self, output: pathlib.Path, asked: dict, model: Fingerprint, complete: Index | None = None):
        self.output, self.asked, self.model, self.complete = output, asked, model, complete
        self.folder = output / BUILDING
        self.gone = np.zeros(0, np.int64)  # rows of the complete index to drop
        self._lock = contextlib.ExitStack()
        plan, probes = self.folder / PLAN, self.folder / index_files.PROBES
        foreign = output.exists() and (not output.is_dir() or any(path != self.folder for path in output.iterdir()))
        if foreign and not plan.exists() and complete is None:
            raise UserError(f"{output} is neither empty nor an index; choose a new folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        # Two processes that write shards of one number would lose one's.
        busy = f"Another process is making the index {output}; wait for it."
        self._lock.enter_context(exclusive_lock(self.folder / "lock", busy))
        if complete is not None:
            self._lock.enter_context(changing(output))
        (self.folder / "parts").mkdir(exist_ok=True)
        if plan.exists():
            check_asked(output, read_json(plan), asked)
            before = Fingerprint(read_array(probes), "of the interrupted run")
            before.check(model, f"The unfinished index {output}")
            return
        save_array(probes, model.probes)
        write_whole(plan, json.dumps(asked, indent=2) + "\n")

    def close(self) -> None:
        """Lets other processes go on with the shards."""
        self._lock.close()

    def discard(self) -> None:
        """Removes the shards."""
        self.close()
        shutil.rmtree(self.folder)

    def encode(self, embedder, groups: Sequence[Sequence[Piece]], batch_size: int, bar: tqdm, prune: bool) -> None:
        """Makes shards of the pieces that have none, without what earlier shards, or a complete index, hold.

        With `prune`, the complete index is to lose what the pieces do not hold.
        """
        kind, width = self.asked["kind"], self.model.probes.shape[1]
        done = {tuple(source) for manifest in self._manifests() for source in manifest.sources}
        missing = [[piece for piece in group if piece.unit[:4] not in done] for group in groups]
        missing = [group for group in missing if group]
        seen = Seen()
        if missing and self.complete is None:
            for shard in self.shards():
                bar.update(int(seen.add_all(_hashes(kind, shard.items)).sum()))
        elif missing or prune:  # what did not change is in no shard
            for entry in collect.read(kind, (piece for group in groups for piece in group if piece.unit[:4] in done)):
                bar.update(int(seen.add(collect.hash_of(key_of(kind, entry)))))
        choose = Changes(self.complete) if self.complete is not None else with_content
        dtype = self.asked["dtype"]
        write = EmbedShard(embedder, self.folder, kind, dtype, width, batch_size, 1.0, seen, bar.update, choose)
        for number, group in enumerate(missing, start=len(self._numbers())):
            list(write((number, group)))
        if prune:
            self.drop_others_than(seen)

    def drop_others_than(self, seen: Seen) -> None:
        """Lets the complete index lose the rows whose keys were not seen."""
        if self.complete is not None:
            self.gone = KnownRows(self.complete).absent(seen)

    def shards(self) -> list[Shard]:
        """Returns the finished ones."""
        names = ((self.folder / "parts" / f"{number:06d}", number) for number in self._numbers())
        return [
            Shard(name.with_suffix(".vectors.npy"), name.with_suffix(".items.jsonl"), places_path(self.folder, number))
            for name, number in names
        ]

    def put_together(self, further: Sequence[Shard] = ()) -> None:
        """Joins the shards, and further ones, and puts the files of the index into its folder; unless nothing is new.

        Every step can be repeated after a kill. The description comes last, so that an index that has one is complete.
        """
        joined = self.folder / JOINED
        if not self.is_joined:
            shards = [*self.shards(), *further]
            kept = rows_to_keep(self.asked["kind"], shards)
            if self.complete is not None:
                kept = self._changed(shards, kept)
                if not len(self.gone) and not any(rows.any() for rows in kept[1:]):
                    self.discard()
                    return
                shards.insert(0, Shard(self.output / index_files.EMBEDDINGS, self.output / index_files.ITEMS))
            shutil.rmtree(joined, ignore_errors=True)
            joined.mkdir()
            self._join(shards, kept, joined)
        for name in OF_ONE_STATE:  # of an index that changes
            (self.output / name).unlink(missing_ok=True)
        for path in sorted(joined.iterdir(), key=lambda path: (path.name == index_files.DESCRIPTION, path.name)):
            publish(path, self.output / path.name)
        self.discard()

    def _changed(self, shards: Sequence[Shard], kept: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the rows to keep, bool, of the complete index and of the shards that change it."""
        known = KnownRows(self.complete)
        stays = np.ones(len(self.complete), bool)
        stays[self.complete.removed] = stays[self.gone] = False
        changed = []
        for shard, rows in zip(shards, kept):
            before = known.rows(_hashes(self.asked["kind"], shard.items))
            changed.append(rows & ~self._same(shard, before))
            stays[before[changed[-1] & (before >= 0)]] = False
        return [stays, *changed]

    def _same(self, shard: Shard, before: np.ndarray) -> np.ndarray:
        """Tells of the rows of a shard, bool [N], which are what their rows in the complete index are."""
        same, width = before >= 0, self.complete.embeddings.shape[1]
        for row, (line, place) in enumerate(zip(_lines(shard.items), before)):
            same[row] = same[row] and from_json(line) == self.complete.describe(place)
        for begin, block in read_blocks(shard.vectors, len(before), width):
            places = before[begin : begin + len(block)]
            stored = self.complete.embeddings[np.maximum(places, 0)]
            same[begin : begin + len(block)] &= (block.astype(stored.dtype) == stored).all(axis=1)
            forget(self.complete.embeddings)
        return same

    @property
    def is_joined(self) -> bool:
        """Whether a killed run has joined the shards already."""
        return (self.folder / JOINED / index_files.DESCRIPTION).exists()

    def _join(self, shards: Sequence[Shard], kept: Sequence[np.ndarray], folder: pathlib.Path) -> None:
        count = join(shards, kept, folder, self.model.probes.shape[1], self.asked["dtype"])
        skipped = join_skipped(shards, folder / index_files.SKIPPED)
        if not count:
            self.discard()
            raise UserError(f"None of the {skipped} {self.asked['kind']} can be read.")
        save_array(folder / index_files.PROBES, self.model.probes)
        write_whole(folder / index_files.DESCRIPTION, self._description(count, skipped))

    def _description(self, count: int, skipped: int) -> str:
        path = collect.absolute(self.model.path) if self.model.path else ""
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

    def _numbers(self) -> list[int]:
        names = (path.name for path in (self.folder / "parts").glob("*.json"))
        return sorted(int(name[:6]) for name in names if re.fullmatch(r"\d{6}\.json", name))

    def _manifests(self) -> Iterator[Manifest]:
        for number in self._numbers():
            try:
                yield read_manifest(self.folder, number)
            except (ValueError, TypeError, KeyError) as error:
                path = manifest_path(self.folder, number)
                raise UserError(f"{path} is damaged ({error}): delete {self.folder} and index again.") from None


def check_asked(output: pathlib.Path, before: dict, asked: dict) -> None:
    """Raises `UserError` unless the index in `output` is the one that was asked for."""
    changed = {key: value for key, value in asked.items() if before.get(key) != value}
    differing = [f"{key} {before.get(key)!r}, not {value!r}" for key, value in changed.items()]
    if differing:
        raise UserError(
            f"{output} already holds an index of {'; '.join(differing)}: choose another folder, or delete this one."
        )


# Joining shards.


def rows_to_keep(kind: str, shards: Sequence[Shard]) -> list[np.ndarray]:
    """Tells of the rows of each shard, bool [N], which are the first ones with their keys.

    Memory: 8 bytes an item for the hashes of keys (16 while they are sorted).
    """
    seen = Seen()
    return [seen.add_all(_hashes(kind, shard.items)) for shard in shards]


def join(shards: Sequence[Shard], kept: Sequence[np.ndarray], folder: pathlib.Path, width: int, dtype: str) -> int:
    """Writes the items and vectors of the rows that are kept, a few thousand at a time; returns how many."""
    count = sum(int(np.count_nonzero(rows)) for rows in kept)
    lines = (line for shard, rows in zip(shards, kept) for line, is_kept in zip(_lines(shard.items), rows) if is_kept)
    write_items(folder / index_files.ITEMS, lines)
    with whole(folder / index_files.EMBEDDINGS) as partial, partial.open("wb") as file:
        file.write(array_header(count, width, dtype))
        for shard, rows in zip(shards, kept):
            for begin, block in read_blocks(shard.vectors, len(rows), width):
                chosen = block[rows[begin : begin + len(block)]]
                file.write(np.ascontiguousarray(chosen, dtype).tobytes())
    return count


def join_skipped(shards: Sequence[Shard], path: pathlib.Path) -> int:
    """Writes place[TAB]reason of what the shards could not read, each place once; returns how many."""
    seen, count = Seen(), 0
    with whole(path) as partial, partial.open("wb") as file:
        for shard in shards:
            if shard.skipped is None or not shard.skipped.is_file():
                continue
            with shard.skipped.open("rb") as lines:
                for line in lines:
                    reason, _, place = line.rstrip(b"\n").partition(b"\t")
                    if seen.add(bytes_hash(place)):
                        count += 1
                        file.write(b"%s\t%s.\n" % (place, reason))
    return count


def read_blocks(path: pathlib.Path, count: int, width: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first row, float32 or float16 [N, width]) of the `count` rows of a .npy file, a few thousand at a time.

    Raises:
      UserError: the file is damaged or holds something else.
    """
    with path.open("rb") as file:
        try:
            np.lib.format.read_magic(file)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        except Exception as error:  # noqa: BLE001 - NumPy's reader raises many classes on damaged headers
            raise UserError(f"{path} is damaged ({error}); make it again.") from None
        if shape != (count, width) or fortran or str(dtype) not in DTYPES:
            raise UserError(f"{path} holds {dtype} {list(shape)}: expected {' or '.join(DTYPES)} [{count}, {width}].")
        for begin in range(0, count, ROWS):
            rows = min(ROWS, count - begin)
            data = file.read(rows * width * dtype.itemsize)
            if len(data) < rows * width * dtype.itemsize:
                raise UserError(f"{path} is damaged (it ends in row {begin + rows}); make it again.")
            yield begin, np.frombuffer(data, dtype).reshape(rows, width)


def _hashes(kind: str, path: pathlib.Path) -> np.ndarray:
    """Returns the hashes of the keys of a file of items, uint64 [N]."""
    keys = (collect.hash_of(collect.key_of(kind, item)) for item in _items(path))
    return np.fromiter(keys, np.uint64)


def _items(path: pathlib.Path) -> Iterator[Item]:
    for number, line in enumerate(_lines(path), start=1):
        try:
            yield from_json(line)
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"Line {number} of {path} is damaged ({error}): delete {path.parent} and make it again."
            ) from None


def _lines(path: pathlib.Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        yield from lines


PART = 1024  # items in a shard, about


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
    seen = Seen()
    distinct = (entry for entry in found if seen.add(collect.hash_of(key_of(kind, entry))))
    items, embeddings, skipped = encode(embedder, distinct, kind, batch_size, progress)
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
    prune: bool = False,
) -> Index:
    """Makes the index `output`, or continues an interrupted run; a complete one is opened as it is.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`.
      names: folders, globs, TFRecords or tables, see `collect.find`.
      kind, split: what of them.
      dtype: of the stored vectors, "float32" or "float16" (half the size; scores change by about 1e-4).
      batch_size: images per call of the model.
      update: bring a complete index to what its sources hold by now: what is new is added, what changed is replaced,
        and its approximate part goes. What is in no source any more stays, unless
      prune: an update is to take it out.
      part: items in a shard, about: what an interrupted run loses.

    Raises:
      UserError: sources that hold nothing, a folder that is something else, an index of other sources or of
        another model, nothing that can be read.
    """
    if dtype not in DTYPES:
        raise UserError(f"Unknown dtype {dtype!r}; known: {', '.join(DTYPES)}.")
    files = collect.list_files(kind, names, split)  # mistakes show before anything is written
    model = take(embedder)
    asked = {"kind": kind, "sources": [collect.absolute(name) for name in names], "split": split, "dtype": dtype}
    output = _here(output)
    complete = _complete(output, asked, model)
    if complete is not None and not update:
        return complete
    with contextlib.closing(Parts(output, asked, model, complete)) as parts:
        if not parts.is_joined:
            with tqdm(desc=f"Indexing {kind}", unit=f" {kind}", disable=not progress) as bar:
                parts.encode(embedder, collect.cut_files(kind, files, part), batch_size, bar, prune)
        parts.put_together()
    return index_files.load_index(output)


def index_embeddings(
    folder: str | os.PathLike, output: str | os.PathLike, update: bool = False, prune: bool = False
) -> Index:
    """Makes the index `output` of a folder that `embed` made, in bounded memory; a complete one is opened as it is.

    Args:
      folder: see `embed`.
      output: a folder that is missing, empty or holds an index of this folder.
      update, prune: bring a complete index to what the folder holds by now, as `build_index` does.

    Raises:
      UserError: `folder` is not what `embed` makes, or damaged; an index of something else in `output`.
    """
    described, model, shards = open_embeddings(folder)
    kind, dtype = described["kind"], described["dtype"]
    asked = {"kind": kind, "sources": [collect.absolute(folder)], "split": described["split"], "dtype": dtype}
    output = _here(output)
    complete = _complete(output, asked, model)
    if complete is not None and not update:
        return complete
    with contextlib.closing(Parts(output, asked, model, complete)) as parts:
        if prune:
            seen = Seen()
            for shard in shards:
                seen.add_all(_hashes(kind, shard.items))
            parts.drop_others_than(seen)
        parts.put_together(shards)
    return index_files.load_index(output)


def _here(output: str | os.PathLike) -> pathlib.Path:
    output = as_path(output)
    if not isinstance(output, pathlib.Path):
        raise UserError(f"{output}: an index is made on this machine: remote_folders.local_folder gives a folder.")
    return output


def open_embeddings(folder: str | os.PathLike) -> tuple[dict, Fingerprint, list[Shard]]:
    """Returns what embeddings.json says, the model that made the vectors, and the shards, their checksums compared."""
    folder = as_path(folder)
    path = folder / embed.DESCRIPTION
    if not path.is_file():
        raise UserError(f"{folder} holds no embeddings: it has no {embed.DESCRIPTION}. Make it with: embed.")
    described = read_json(path)
    wanted = {"format": int, "kind": str, "split": str, "dtype": str, "shards": int, "made_by": dict}
    for name, kind in wanted.items():
        json_field(described, name, kind, path)
    if described["format"] != embed.FORMAT:
        raise UserError(f"{path} is of another format than {embed.FORMAT}, which this version reads; embed again.")
    count = described["shards"]
    for number in range(count):
        manifest = folder / embed.shard_name("manifest", number, count)
        for part in json_field(read_json(manifest), "parts", list[dict], manifest):
            _check_part(folder / json_field(part, "name", str, manifest), part)
    shards = [
        Shard(*(folder / embed.shard_name(kind, number, count) for kind in ("vectors", "items")))
        for number in range(count)
    ]
    shards[0] = shards[0]._replace(skipped=folder / index_files.SKIPPED)
    probes = np.array(load_array(folder / index_files.PROBES))
    made_by = described["made_by"]
    return described, Fingerprint(probes, str(made_by.get("path", "")), made_by.get("step")), shards


def _check_part(path: pathlib.Path, part: dict) -> None:
    """Raises `UserError` unless a file has the checksum that its manifest says."""
    checksum = google_crc32c.Checksum()
    if path.is_file():
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                checksum.update(chunk)
    if checksum.hexdigest().decode() != part.get("crc32c"):
        raise UserError(f"{path} is missing, damaged or another one than its manifest describes: embed again.")


def _complete(output: pathlib.Path, asked: dict, model: Fingerprint) -> Index | None:
    """Returns the complete index in a folder, None if there is none; raises `UserError` if it is another one."""
    if not (output / index_files.DESCRIPTION).exists():
        return None
    check_asked(output, index_files.read_description(output), asked)
    complete = index_files.load_index(output)
    complete.model.check(model, f"The index {output}")
    return complete
