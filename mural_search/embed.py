"""Embeds images or texts by blocks, in one process or many, and writes vectors as Parquet (`mural_lite/vectors.py`).

    python -m mural_tf embed photos data/mine --model=EXPORT --output=FOLDER

A folder of embeddings, complete when it has `embeddings.json`:

    embeddings.json              kind, counts, the model, skipped items
    part-00000-of-00012.parquet  items and their vectors
    skipped.tsv                  reason[TAB]place of items that could not be read, if there are any

The sources' files are cut into shards beforehand, so that the number of workers does not change a shard. While it runs,
everything lies in a hidden folder next to the output; the same command again makes the missing shards. An item that
comes again in its shard is left out; `search index` leaves out repetitions in other shards.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from mural_lite import shards
from mural_lite.errors import UserError
from mural_lite.files import as_path, atomic_file, read_json, storage_errors, write_whole
from mural_lite.fingerprint import Fingerprint, take_fingerprint
from mural_lite.models import LITE, open_model
from mural_lite.printable import printable
from mural_lite.progress import announce, tqdm
from mural_lite.quiet import quiet_imports
from mural_lite.remote_folders import local_model
from mural_lite.shards import Manifest, Part
from mural_lite.skipped import Tally, check_fraction
from mural_lite.trust import is_trusting
from mural_lite.vectors import ENDING, VectorFile, metadata_of, model_digest, read_rows, vector_files
from mural_lite.work import Engine, Step
from mural_search import changes, collect
from mural_search.collect import Found, Piece, Unreadable
from mural_search.index import Index
from mural_search.items import IMAGES, Item

DESCRIPTION = "embeddings.json"
SKIPPED = "skipped.tsv"
FORMAT = 2  # raised when the same input would give other vectors than before
BLOCK = 4096  # items given to the encoder in one call, which sorts texts by length
BATCH = {"images": 64, "texts": 256}  # of one run of the encoder


@dataclasses.dataclass
class Embedded(Tally):
    """The tally of the items of a shard, or of all shards."""

    THINGS: ClassVar[str] = "images and texts"
    FLAG: ClassVar[str] = ""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of `embed`.

    Attributes:
      kind: "images" or "texts".
      split: the split to read in folders of the project's TFRecords; "": every split.
      dtype: the stored vectors' type, "float32" or "float16".
      batch_size: items in one run of the encoder; 0: 64 images, 256 texts.
      shard_items: about how many items are in a shard; a killed run loses as many per worker.
      workers: processes of this machine; 0 works in the calling process.
      beam: flags of Apache Beam, to work on other machines; see `work.Engine`.
      max_skipped_fraction: the share of the items read that may be skipped; above it the work stops.
      product: the field whose value the pictures of one product share; `embed` finds it in the sources.
    """

    kind: str = IMAGES
    split: str = ""
    dtype: str = "float32"
    batch_size: int = 0
    shard_items: int = 16_384
    workers: int = 1
    beam: str = ""
    max_skipped_fraction: float = 0.01
    product: str = ""

    def __post_init__(self):
        check_fraction(self.max_skipped_fraction, "max_skipped_fraction")

    @property
    def batch(self) -> int:
        """The number of items in one run of the encoder."""
        return self.batch_size or BATCH[self.kind]

    def worker_threads(self) -> int:
        """Returns the number of TensorFlow's threads in a worker: the cores divided by the workers.

        0, so that TensorFlow decides, without workers of this machine.
        """
        if self.beam or not self.workers:
            return 0
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        else:
            cores = os.cpu_count() or 1
        return max(1, cores // self.workers)


def embed(
    model: str,
    sources: Sequence[str],
    output: str | os.PathLike,
    settings: Settings,
    restart: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Embeds the items of the sources into the folder `output`, which appears when it is complete; returns its path.

    Args:
      model: a folder that `mural_lite.open_model` takes; every worker reads it.
      sources: see `collect.find`; their order does not matter.
      output: a folder that does not exist yet, is empty, or holds these very embeddings.
      settings: see `Settings`; its `product` is not used. With workers, a script calls this below
        `if __name__ == "__main__":`.
      restart: start again instead of going on with a run that stopped.
      progress: whether to show a bar.

    Raises:
      UserError: unusable sources or settings, a model that is not there, too many items skipped, something else in
        `output`, unfinished work on something else next to it, or a full disk.
    """
    engine = Engine(settings.workers, settings.beam)  # raises for unknown flags
    model_folder = local_model(model)
    if not model_folder.is_dir():
        raise UserError(f"The model folder {model} does not exist; give a workdir or an export.")
    name_of = dict(collect.list_files(settings.kind, sources, settings.split))  # each file once
    groups = collect.cut_files(settings.kind, sorted(name_of.items()), settings.shard_items)
    output = as_path(output)
    identity = _identity(model_folder, sources, groups, settings)
    settings = dataclasses.replace(settings, product=collect.product_field(sources))
    folder = output.parent / f".{output.name}.embedding"
    with shards.work_in(folder, output, identity, restart, DESCRIPTION, "set of embeddings") as unfinished:
        if unfinished:
            if engine.workers:
                announce(f"Loading {model} in every worker …")
            _make_missing_shards(engine, collect.absolute(model), groups, folder, settings, progress)
            _assemble_vectors(folder, output, identity, len(groups), settings)
    return output


def _identity(model: pathlib.Path, sources: Sequence[str], groups: Sequence, settings: Settings) -> dict:
    """Returns {setting: JSON value} of everything that the vectors depend on.

    `groups`: the pieces of each shard; their files and lengths go into the digest "files".
    """
    files_digest = hashlib.blake2b(json.dumps(groups).encode(), digest_size=8)
    pieces = itertools.chain.from_iterable(groups)
    for path in collect.side_files(unit.path for _, unit in pieces):
        files_digest.update(path.read_bytes())
    return {
        "name": "embeddings",
        "format": FORMAT,
        "sources": sorted(map(collect.absolute, sources)),
        "files": files_digest.hexdigest(),
        "model": model_digest(model),
        "kind": settings.kind,
        "split": settings.split,
        "dtype": settings.dtype,
        "batch_size": settings.batch,
        "shard_items": settings.shard_items,
    }


def _make_missing_shards(
    engine: Engine, model: str, groups: list[list[Piece]], folder: pathlib.Path, settings: Settings, progress: bool
) -> None:
    """Makes the shards that the unfinished folder `folder` lacks, and shows a bar.

    Args:
      model: the model's folder, which every worker opens.
      groups: the pieces of each shard.
      progress: whether to show the bar.
    """
    jobs = [(number, groups[number]) for number in shards.missing_shards(folder, len(groups))]
    if not jobs:
        return
    sizes = [sum(unit.size for _, unit in pieces) for pieces in groups]  # bytes
    step = Step("Embed", make_worker, (model, folder, settings, is_trusting()))
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc="Embedding", disable=not progress) as bar:
        watch = shards.Watch(folder, sizes, settings.max_skipped_fraction, bar, Embedded())
        engine.map(step, jobs, folder, watch)


# The work of a worker.


def make_worker(model: str, folder: pathlib.Path, settings: Settings, trust: bool) -> Callable:
    """Loads the model in a worker, and returns the function that embeds a shard, given (its number, its pieces).

    Args:
      model: the model's folder.
      folder: the unfinished folder.
      trust: whether code of the model may run, see `mural_lite.trust`.

    Raises:
      UserError: the model cannot be loaded, or differs from the finished shards' model.
    """
    with _LOADING:  # an engine elsewhere makes a step for each of its threads: they share the model
        embedder, fingerprint = load_model(model, settings.worker_threads(), trust)
    finished = vector_files(folder / "parts")
    if finished:
        fingerprint_of(finished[0]).check(fingerprint, f"The unfinished work in {folder}")

    def embed_shard(job: tuple[int, Sequence[Piece]]) -> None:
        number, pieces = job
        make_shard(embedder, fingerprint, folder, number, pieces, settings)

    return embed_shard


_LOADING = threading.Lock()


@functools.lru_cache(maxsize=1)
def load_model(model: str, threads: int, trust: bool) -> tuple:
    """Loads a model, unless it is the last that was loaded; returns (its `Embedder`, its `Fingerprint`).

    Args:
      model: the model's folder.
      threads: how many this process computes in; 0: the model decides. TensorFlow that has computed keeps its own.
      trust: whether code of the model may run, see `mural_lite.trust`.
    """
    quiet_imports()
    from mural_lite.litert.runtime import set_threads

    set_threads(threads)
    if threads and not (local_model(model) / LITE).is_file():
        import tensorflow as tf

        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        except RuntimeError:  # TensorFlow has computed in this process before
            pass
    embedder = open_model(model, trust=trust)
    return embedder, take_fingerprint(embedder)


def make_shard(
    embedder, model: Fingerprint, folder: pathlib.Path, number: int, pieces: Sequence[Piece], settings: Settings
) -> None:
    """Encodes the items of a shard, and writes their vectors and then the shard's manifest into an unfinished folder.

    Args:
      model: the fingerprint of `embedder`, which the file records.
      folder: the unfinished folder.
      number: the shard's number, from 0.
      pieces: the shard's pieces, in order.
    """
    tally = Embedded()
    entries = _readable_entries(pieces, settings, tally)
    path = folder / "parts" / f"{number:06d}{ENDING}"
    metadata = vectors_metadata(model, settings.kind, settings.split, settings.dtype, settings.product)
    with atomic_file(path) as partial:
        with VectorFile(partial, model.probes.shape[1], settings.dtype, metadata) as file:
            while block := list(itertools.islice(entries, BLOCK)):
                items, vectors = _encode(embedder, block, settings, tally)
                if items:
                    file.add([to_row(item) for item in items], vectors)
        size = partial.stat().st_size
    part = Part("vectors", "", path.name, size, "", tally.written, tally.written, {})
    shards.write_manifest(folder, number, Manifest(tally, [part]))


def _readable_entries(pieces: Sequence[Piece], settings: Settings, tally: Embedded) -> Iterator[changes.Entry]:
    """Yields the entries of pieces that can be read, each key once; counts the others in `tally`."""
    seen_keys = set()
    for collected in collect.read(settings.kind, pieces):
        key = changes.key_of(settings.kind, collected)
        entry = changes.read_entry(settings.kind, collected)
        if key in seen_keys:
            name = entry.name if isinstance(entry, Unreadable) else entry.item.name
            tally.left_out.add("repeated", name)
        elif isinstance(entry, Unreadable):
            tally.skip(entry.kind, entry.name, entry.count)
        else:
            yield entry
        seen_keys.add(key)


def _encode(
    embedder, entries: Sequence[changes.Entry], settings: Settings, tally: Embedded
) -> tuple[list[Item], np.ndarray]:
    """Returns the items of entries that can be encoded, and their vectors [N, D]; counts all entries in `tally`."""
    contents = [entry.content for entry in entries]
    vectors, usable = changes.encode(embedder, settings.kind, contents, settings.batch)
    for number in np.setdiff1d(np.arange(len(entries)), usable):
        unreadable = changes.unreadable(settings.kind, entries[number].item)
        tally.skip(unreadable.kind, unreadable.name)
    tally.written += len(usable)
    return [entries[number].item for number in usable], vectors


# The end.


def _assemble_vectors(
    folder: pathlib.Path, output: pathlib.Path, identity: dict, count: int, settings: Settings
) -> None:
    """Turns an unfinished folder, which holds all `count` shards, into the folder `output` with its description.

    A killed process may have made some of the steps; each can be made again. Raises `UserError` if there is no item,
    or if too many items were skipped.
    """
    tally = Embedded()
    manifests = shards.read_manifests(folder, count, tally, settings.max_skipped_fraction)
    if not tally.written:
        raise UserError("Nothing to embed: " + "; ".join(line.strip() for line in tally.lines()) + ".")
    complete = shards.complete_folder(folder, output)
    complete.mkdir(exist_ok=True)
    for number, manifest in enumerate(manifests):
        for part in manifest.parts:
            shards.rename_part(folder, part, complete / f"part-{number:05d}-of-{count:05d}{ENDING}")
    shards.join_skipped(folder, count, complete / SKIPPED)
    model = fingerprint_of(vector_files(complete)[0])
    description = {
        **identity,
        "made_by": {"path": model.path, "step": model.step, "digest": identity["model"], "identity": str(model)},
        "count": tally.written,
        "embedding_size": int(model.probes.shape[1]),
        **tally.described(),
    }
    write_whole(complete / DESCRIPTION, json.dumps(description, indent=1, ensure_ascii=False) + "\n")
    shards.publish_work(folder, output)


def describe(output: pathlib.Path) -> str:
    """Returns lines on the contents of a folder of embeddings and on skipped items, the most frequent problem first."""
    description = read_json(output / DESCRIPTION)
    made_by = description["made_by"]
    model = f"{made_by['path']} [{made_by['identity']}]"
    vectors = f"{description['dtype']} [N, {description['embedding_size']}]"
    lines = [f"{description['count']:,} {description['kind']} in {output}: {vectors}, made by {model}"]
    for outcome in ("skipped", "left_out"):
        problems = description[outcome]  # {problem: {"count", "first"}}
        for problem, entry in sorted(problems.items(), key=lambda pair: -pair[1]["count"]):
            lines.append(f"{outcome.replace('_', ' ')} {entry['count']} x {problem}, first at {entry['first']}")
    return "\n".join(lines)


# Rows of Parquet, and items of an index.


def vectors_metadata(model: Fingerprint, kind: str, split: str, dtype: str, product: str = "") -> dict:
    """Returns the metadata of a file of vectors: {"kind", "split", "dtype", "product", "model"}, JSON values.

    "model" is the fingerprint `model` of the model that made the vectors, as `fingerprint_of` reads it.
    """
    probes = model.probes.astype("<f4")
    fingerprint = {
        "path": model.path,
        "step": model.step,
        "shape": probes.shape,
        "probes": base64.b64encode(probes.tobytes()).decode(),
    }
    return {"kind": kind, "split": split, "dtype": dtype, "product": product, "model": fingerprint}


def fingerprint_of(path: str | os.PathLike) -> Fingerprint:
    """Returns the fingerprint of the model that made a file of vectors; raises `UserError` if the file lacks it."""
    model = metadata_of(path).get("model")
    if not model:
        raise UserError(f"{path} does not say which model made its vectors: it was not written by `embed` or `export`.")
    probes = np.frombuffer(base64.b64decode(model["probes"]), "<f4").reshape(model["shape"])
    return Fingerprint(probes, model["path"], model["step"])


def to_row(item: Item) -> dict[str, object]:
    """Returns the row of Parquet for an item, {column: value}; captions and fields are JSON, the path is bytes."""
    return {
        "name": printable(item.name),
        "language": printable(item.language),
        "captions": json.dumps(item.captions),
        "fields": json.dumps(item.fields),
        "content": item.content,
        "path": item.path.encode("utf-8", "surrogatepass"),
        "offset": item.offset,
    }


def to_item(row: dict[str, object]) -> Item:
    """Returns the item of a row, {column: value} as `to_row` makes it; other programs leave columns out, or null.

    Raises `ValueError`, `TypeError` or `AttributeError` for values of other types.
    """
    path = row.get("path") or b""
    offset = row.get("offset")
    if offset is None:
        offset = -1
    captions = json.loads(row.get("captions") or "[]")
    return Item(
        name=row["name"],
        path=path.decode("utf-8", "surrogatepass"),
        offset=offset,
        captions=tuple((language, text) for language, text in captions),
        language=row.get("language") or "",
        fields=json.loads(row.get("fields") or "{}"),
        content=row.get("content") or "",
    )


def export(index: Index, path: str | os.PathLike) -> None:
    """Writes an index as one Parquet file: a row per item, see `to_row`, and its vector, zeros without a picture."""
    metadata = vectors_metadata(index.model, index.kind, index.split, index.dtype, index.product)
    with storage_errors(as_path(path)), atomic_file(path) as partial:
        with VectorFile(partial, index.embeddings.shape[1], index.dtype, metadata) as file:
            for items, vectors in index.blocks():
                file.add([to_row(item) for item in items], vectors)


def is_embeddings(folder: str | os.PathLike) -> bool:
    """Whether a folder holds Parquet files of vectors; img2dataset's Parquet files are others.

    Raises `UserError` for a damaged file.
    """
    files = vector_files(folder)
    return bool(files) and bool(metadata_of(files[0]))


def read(folder: str | os.PathLike) -> tuple[Fingerprint, dict, Iterator[Found]]:
    """Returns (fingerprint, settings, pairs of an item and its vector [D]) of a folder of vectors, for `index.sync`.

    The fingerprint is of the model that made them; the settings are {"kind", "split", "dtype", "product", "sources"}.
    Raises `UserError` if there are no files or several models, and, when the pairs are read, for a damaged file.
    """
    files = vector_files(folder)
    if not files:
        raise UserError(f"{folder} holds no embeddings: it has no *{ENDING}. Make them with: embed.")
    metadata = metadata_of(files[0])
    model = fingerprint_of(files[0])
    for path in files[1:]:
        fingerprint_of(path).check(model, str(path))
    settings = {name: metadata[name] for name in ("kind", "split", "dtype")}
    settings["product"] = metadata.get("product", "")  # earlier files lack it
    return model, {**settings, "sources": [collect.absolute(folder)]}, _items(files)


def _items(files: Sequence) -> Iterator[Found]:
    """Yields the items of files of vectors, each with its vector; raises `UserError` for a damaged file."""
    for path in files:
        for rows, vectors in read_rows(path):
            try:
                items = [to_item(row) for row in rows]
            except (ValueError, TypeError, AttributeError) as error:
                raise UserError(f"{path} holds columns that `embed` does not write ({error}).") from None
            yield from zip(items, vectors)
