"""Makes an index: encodes what the sources hold, in memory or shard by shard into a folder, or takes embeddings.

While an index is made, `<output>/building/` holds a plan (what was asked for), the model's probes, and shards, which
`embed.make_shard` writes here as for the command `embed`. The same command continues after them, so that an interrupted
run loses at most one shard. At the end they are joined, without rows of keys that came earlier, and without holding
more than a few thousand rows. An index of a folder that `embed` made is these last steps alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import numpy as np

from mural_tf.data.pictures import read_file
from mural_tf.data.shards import Manifest, manifest_path, places_path, read_manifest
from mural_tf.data.vectors import shard_name
from mural_tf.errors import UserError
from mural_tf.files import (
    as_path,
    exclusive_lock,
    forget,
    json_field,
    publish,
    read_json,
    save_array,
    whole,
    write_whole,
)
from mural_tf.progress import tqdm
from mural_tf.search import approximate, collect, confidence, embed, ranking
from mural_tf.search import index as index_files
from mural_tf.search.collect import Found, Piece, Seen, Unreadable
from mural_tf.search.embed import DTYPES, Settings, encode, keep_model, make_shard, part_path
from mural_tf.search.index import BUILDING, JOINED, Fingerprint, Index, changing, read_array, take
from mural_tf.search.items import IMAGES, TOGETHER, Item, content_of, from_json, write_items

if TYPE_CHECKING:  # TensorFlow, which commands do without until they embed
    from mural_tf.embedder import Embedder

PLAN = "plan.json"
# What an index that changes must not keep; the journal is of a removal that was killed.
OF_ONE_STATE = (
    *(index_files.DESCRIPTION, f"{index_files.ITEMS}-journal", approximate.REPORT, approximate.FILE, confidence.FILE),
    ranking.VECTORS,
)


class Shard(NamedTuple):
    """Files of vectors and their items, in parallel; `skipped`: reason[TAB]place of what could not be read, or None."""

    vectors: pathlib.Path
    items: pathlib.Path
    skipped: pathlib.Path | None = None

    def blocks(self, width: int) -> Iterator[tuple[list[Item], np.ndarray]]:
        """Yields items and their vectors, float32 or float16 [N, width], a few thousand at a time.

        Raises `UserError` if a file is damaged or holds something else.
        """
        vectors = read_array(self.vectors)
        if vectors.shape[1:] != (width,) or str(vectors.dtype) not in DTYPES:
            raise UserError(f"{self.vectors} holds {vectors.dtype} {list(vectors.shape)}: expected [N, {width}].")
        with self.items.open("rb") as lines:
            for begin in range(0, len(vectors), TOGETHER):
                block = vectors[begin : begin + TOGETHER]
                try:
                    items = [from_json(line) for line in itertools.islice(lines, len(block))]
                except ValueError as error:
                    raise UserError(f"{self.items} is damaged ({error}): delete its folder, make it again.") from None
                yield items, block
                forget(vectors)


class Building:
    """The unfinished index in `output`: new, or that of an interrupted run of the same command.

    Args:
      output: a folder that is missing, empty or holds an unfinished index.
      asked: what the index is of: kind, sources, split, dtype.
      model: of its vectors.
      complete: the complete index in `output`, if it is to grow; it stays in use until the shards are joined.
      prune: the complete index is to lose what the sources do not hold.

    Raises:
      UserError: the folder holds something else, or an unfinished index of something else, or another
        process is making it.
    """

    def __init__(
        self, output: pathlib.Path, asked: dict, model: Fingerprint, complete: Index | None = None, prune: bool = False
    ):
        self.output, self.asked, self.model, self.complete, self.prune = output, asked, model, complete, prune
        self.folder, self.kind, self.width = output / BUILDING, asked["kind"], model.probes.shape[1]
        self._seen, self._lock = Seen(self.kind), contextlib.ExitStack()
        self.gone = 0  # rows that stay although the sources hold them no more
        self.changed = 0  # rows that come with another picture or other captions, or go
        plan = self.folder / PLAN
        foreign = output.exists() and (not output.is_dir() or any(path != self.folder for path in output.iterdir()))
        if foreign and not plan.exists() and complete is None:
            raise UserError(f"{output} is neither empty nor an index; choose a new folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        # Two processes that write shards of one number would lose one's.
        busy = f"Another process is making the index {output}; wait for it."
        self._lock.enter_context(exclusive_lock(self.folder / "lock", busy))
        if complete is not None:
            self._lock.enter_context(changing(output))
            complete.removed = complete.table.removed()  # by now
        (self.folder / "parts").mkdir(exist_ok=True)
        if plan.exists():
            check_asked(output, read_json(plan), asked)
        else:
            write_whole(plan, json.dumps(asked, indent=2) + "\n")
        keep_model(self.folder, model, f"The unfinished index {output}")

    def close(self) -> None:
        """Lets other processes go on with the shards."""
        self._lock.close()

    def encode(self, embedder, groups: Sequence[Sequence[Piece]], batch_size: int, progress: bool) -> None:
        """Makes shards of the pieces that have none, without what earlier shards, or a complete index, hold."""
        if self.is_joined:
            return
        finished = self._finished()
        done = {tuple(source) for manifest in finished for source in manifest.sources}
        missing = [[(name, unit) for name, unit in group if unit[:4] not in done] for group in groups]
        missing = [group for group in missing if group]
        settings = Settings(self.kind, dtype=self.asked["dtype"], batch_size=batch_size)
        with tqdm(desc=f"Indexing {self.kind}", unit=f" {self.kind}", disable=not progress) as bar:
            if missing or self.complete is not None:
                read_before = (piece for group in groups for piece in group if piece[1][:4] in done)
                for entry in collect.read(self.kind, read_before):
                    bar.update(int(self._seen.add(entry)))
            choose = functools.partial(self._changed, bar=bar)
            for number, group in enumerate(missing, start=len(finished)):
                make_shard(embedder, self.folder, number, group, settings, self.width, self._seen, choose)

    def _changed(self, found: Iterable[Found], bar: tqdm) -> Iterator[Found]:
        """Of what was found yields what is new, or another image, with its `content`; the encoder makes its vector.

        What has the image it had, but other captions, fields or another place, comes with the vector it had.
        """
        for entry in found:
            bar.update()
            if isinstance(entry, Unreadable):
                yield entry
                continue
            item, content = entry
            if not isinstance(content, str):
                with contextlib.suppress(OSError, ValueError):  # the encoder will say why
                    content = content if isinstance(content, bytes) else read_file(content)
                    item = dataclasses.replace(item, content=content_of(content))
            row = self._known.number(item)
            before = None if row is None else self.complete.describe(row)
            if before is None or before.content != item.content or (self.kind == IMAGES and not item.content):
                yield item, content
            elif before != item:
                yield item, np.array(self.complete.embeddings[row])

    @functools.cached_property
    def _known(self) -> Seen:
        """The keys of the complete index and their rows, without the removed ones."""
        known, removed = Seen(self.kind), set()
        if self.complete is not None:
            removed.update(self.complete.removed.tolist())
            for row, item in enumerate(self.complete.table):
                if row not in removed:
                    known.add(item, row)
        return known

    def put_together(self, further: Sequence[Shard] = ()) -> None:
        """Joins the shards, and further ones, and puts the files of the index into its folder; unless nothing is new.

        Every step can be repeated after a kill. The description comes last, so that an index that has one is complete.
        """
        joined = self.folder / JOINED
        if not self.is_joined:
            shards = [*map(self._shard, range(len(self._finished()))), *further]
            stays, enters = self._choose(shards)
            if self.complete is not None and stays.sum() == self.complete.count and not any(map(np.any, enters)):
                shutil.rmtree(self.folder)
                return
            shutil.rmtree(joined, ignore_errors=True)
            joined.mkdir()
            known = self.output / confidence.FILE  # how sure answers are holds for an index that is nearly the same
            if known.is_file() and self.changed <= confidence.CHANGED * self.complete.count:
                shutil.copy(known, joined)
            self._join(shards, [stays, *enters], joined)
        for name in OF_ONE_STATE:
            (self.output / name).unlink(missing_ok=True)
        for path in sorted(joined.iterdir(), key=lambda path: (path.name == index_files.DESCRIPTION, path.name)):
            publish(path, self.output / path.name)
        shutil.rmtree(self.folder)

    @property
    def is_joined(self) -> bool:
        """Whether a killed run has joined the shards already."""
        return (self.folder / JOINED / index_files.DESCRIPTION).exists()

    def _choose(self, shards: Sequence[Shard]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Tells which rows of the complete index stay, bool [N], and which of each shard enter, bool [N] each.

        Of rows with one key the first enters, unless it is what the complete index has; if it enters, that one goes.
        """
        stays = np.zeros(len(self.complete) if self.complete is not None else 0, bool)
        stays[[row for _, row in self._known.entries()]] = True
        met, enters = Seen(self.kind), []
        for shard in shards:
            enters.append([])
            for items, vectors in shard.blocks(self.width):
                for item, vector in zip(items, vectors):
                    row = self._known.number(item)
                    before = self._like(row, item, vector)
                    enters[-1].append(met.add(item) and before != item)
                    self.changed += enters[-1][-1] and before is None
                    if enters[-1][-1] and row is not None:
                        stays[row] = False
                if self.complete is not None:
                    forget(self.complete.embeddings)
        gone = [row for key, row in self._known.entries() if not (met.holds(key) or self._seen.holds(key))]
        if self.prune:
            stays[gone] = False
            self.changed += len(gone)
        else:
            self.gone = len(gone)
        return stays, [np.array(rows, bool) for rows in enters]

    def _like(self, row: int | None, item: Item, vector: np.ndarray) -> Item | None:
        """Returns the item of a row of the complete index, if it has this vector and the captions of this item."""
        if row is None:
            return None
        stored, before = self.complete.embeddings[row], self.complete.describe(row)
        is_like = before.captions == item.captions and bool((vector.astype(stored.dtype) == stored).all())
        return before if is_like else None

    def _join(self, shards: Sequence[Shard], chosen: Sequence[np.ndarray], folder: pathlib.Path) -> None:
        """Writes the files of the index: the rows chosen, bool [N], of the complete index and of each shard."""
        count = int(sum(map(np.sum, chosen)))
        skipped = _join_skipped(shards, folder / index_files.SKIPPED)
        if not count:
            shutil.rmtree(self.folder)
            raise UserError(f"None of the {skipped} {self.kind} can be read.")
        sources = [self.complete.blocks() if self.complete is not None else ()]
        sources += [shard.blocks(self.width) for shard in shards]
        dtype = np.dtype(self.asked["dtype"])
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count, self.width)}
        with whole(folder / index_files.VECTORS) as partial, partial.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)

            def items() -> Iterator[Item]:
                for blocks, rows in zip(sources, chosen):
                    for found, vectors in blocks:
                        here, rows = rows[: len(found)], rows[len(found) :]
                        file.write(vectors[here].astype(dtype).tobytes())
                        yield from itertools.compress(found, here)

            with whole(folder / index_files.ITEMS) as items_file:
                write_items(items_file, items()).close()
        save_array(folder / index_files.PROBES, self.model.probes)
        write_whole(folder / index_files.DESCRIPTION, self._description(count, skipped))

    def _description(self, count: int, skipped: int) -> str:
        path = collect.absolute(self.model.path) if self.model.path else ""
        description = {
            "format": index_files.FORMAT,
            **self.asked,
            "count": count,
            "skipped": skipped,
            "embedding_size": self.width,
            "product": collect.product_field(self.asked["sources"]),
            "model": {"path": path, "step": self.model.step, "identity": str(self.model)},
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        return json.dumps(description, indent=2, ensure_ascii=False) + "\n"

    def _finished(self) -> list[Manifest]:
        """Returns the manifests of the finished shards; raises `UserError` if one is damaged."""
        found: list[Manifest] = []
        while (path := manifest_path(self.folder, len(found))).exists():
            try:
                found.append(read_manifest(self.folder, len(found)))
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{path} is damaged ({error}): delete {self.folder} and index again.") from None
        return found

    def _shard(self, number: int) -> Shard:
        files = (part_path(self.folder, number, kind) for kind in ("vectors", "items"))
        return Shard(*files, places_path(self.folder, number))


def check_asked(output: pathlib.Path, before: dict, asked: dict) -> None:
    """Raises `UserError` unless the index in `output` is the one that was asked for."""
    changed = {key: value for key, value in asked.items() if before.get(key) != value}
    differing = [f"{key} {before.get(key)!r}, not {value!r}" for key, value in changed.items()]
    if differing:
        raise UserError(
            f"{output} already holds an index of {'; '.join(differing)}: choose another folder, or delete this one."
        )


def _join_skipped(shards: Sequence[Shard], path: pathlib.Path) -> int:
    """Writes place[TAB]reason of what the shards could not read, each place once; returns how many."""
    seen = set()
    with whole(path) as partial, partial.open("wb") as file:
        for shard in shards:
            lines = shard.skipped.read_bytes().splitlines() if shard.skipped and shard.skipped.is_file() else ()
            for line in lines:
                reason, _, place = line.partition(b"\t")
                if place not in seen:
                    seen.add(place)
                    file.write(b"%s\t%s.\n" % (place, reason))
    return len(seen)


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
    seen = Seen(kind)
    distinct = (entry for entry in found if seen.add(entry))
    items, embeddings, skipped = encode(embedder, distinct, kind, batch_size, progress)
    if not items:
        raise UserError(f"None of the {len(skipped)} {kind} can be read.")
    return Index(items, embeddings, take(embedder), kind, skipped=len(skipped))


def build_index(
    embedder: Embedder,
    names: Sequence[str],
    output: str | os.PathLike,
    kind: str = IMAGES,
    *,
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
    asked = {"kind": kind, "sources": [collect.absolute(name) for name in names], "split": split, "dtype": dtype}

    def make_shards(building: Building) -> None:
        building.encode(embedder, collect.cut_files(kind, files, part), batch_size, progress)

    return _make(output, asked, take(embedder), update, prune, make_shards, embedder=embedder)


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
    asked = {name: described[name] for name in ("kind", "split", "dtype")} | {"sources": [collect.absolute(folder)]}
    return _make(output, asked, model, update, prune, shards=shards)


def _make(
    output: str | os.PathLike,
    asked: dict,
    model: Fingerprint,
    update: bool,
    prune: bool,
    make_shards: Callable[[Building], None] = lambda building: None,
    shards: Sequence[Shard] = (),
    embedder: Embedder | None = None,
) -> Index:
    """Opens the index in a folder, or makes or updates it of the shards that `make_shards` makes, and of others.

    `embedder`: encodes the captions, if it has any.
    """
    output, complete = as_path(output), None
    if not isinstance(output, pathlib.Path):
        raise UserError(f"{output}: an index is made on this machine: remote_folders.local_folder gives a folder.")
    if (output / index_files.DESCRIPTION).exists():
        check_asked(output, index_files.read_description(output), asked)
        complete = index_files.load_index(output)
        complete.model.check(model, f"The index {output}")
    made = complete
    if complete is None or update:
        with contextlib.closing(Building(output, asked, model, complete, prune)) as building:
            make_shards(building)
            building.put_together(shards)
        made = index_files.load_index(output)
        made.gone = building.gone
    if embedder is not None:
        ranking.add_captions(output, made, embedder, complete.captions if complete is not None else None)
    return made


def open_embeddings(folder: str | os.PathLike) -> tuple[dict, Fingerprint, list[Shard]]:
    """Returns what embeddings.json says, the model that made the vectors, and the shards, their checksums compared."""
    folder = as_path(folder)
    path = folder / embed.DESCRIPTION
    if not path.is_file():
        raise UserError(f"{folder} holds no embeddings: it has no {embed.DESCRIPTION}. Make it with: embed.")
    described = read_json(path)
    for name, kind in {"kind": str, "split": str, "dtype": str, "shards": int, "made_by": dict}.items():
        json_field(described, name, kind, path)
    if described.get("format") != embed.FORMAT:
        raise UserError(f"{path} is of another format than {embed.FORMAT}, which this version reads; embed again.")
    shards, count = [], described["shards"]
    for number in range(count):
        manifest = folder / shard_name("manifest", number, count)
        for part in json_field(read_json(manifest), "parts", list[dict], manifest):
            file = folder / json_field(part, "name", str, manifest)
            if not file.is_file() or f"{google_crc32c.value(file.read_bytes()):08x}" != part.get("crc32c"):
                raise UserError(f"{file} is missing, damaged or another one than its manifest describes: embed again.")
        shards.append(Shard(*(folder / shard_name(kind, number, count) for kind in ("vectors", "items"))))
    shards[0] = shards[0]._replace(skipped=folder / index_files.SKIPPED)
    probes, made_by = np.array(read_array(folder / index_files.PROBES)), described["made_by"]
    return described, Fingerprint(probes, str(made_by.get("path", "")), made_by.get("step")), shards
