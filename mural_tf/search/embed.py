"""Embeds images or texts by blocks, in one process or many: shards of vectors, and what they are vectors of.

    python -m mural_tf embed photos data/mine --model=EXPORT --output=FOLDER

A folder of embeddings, complete when it has `embeddings.json`:

    embeddings.json                kind, count, size and type of the vectors, the model, files and their checksums
    vectors-00000-of-00012.npy     float32 or float16 [N, D], L2-normalised
    items-00000-of-00012.jsonl     one `Item` in each line, of the same row
    manifest-00000-of-00012.json   counts, what was skipped, checksums, what was read
    model_probes.npy               the model's `Fingerprint`
    skipped.tsv                    reason[TAB]place of what could not be read; only if something could not

The sources' files are cut into shards beforehand, so that the number of workers does not change a byte. While it runs,
everything lies in a hidden folder beside the output; the same command again makes the shards that have no manifest yet.
An item that comes again in its shard is left out; `search index` leaves out those that come again in another.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import google_crc32c
import numpy as np

from mural_tf.data import pictures, shards
from mural_tf.data.shards import Manifest, Part
from mural_tf.data.skipped import Tally, check_fraction
from mural_tf.data.vectors import DESCRIPTION, ENDINGS, model_digest, shard_name
from mural_tf.errors import UserError
from mural_tf.files import as_path, read_array, read_json, save_array, whole, write_whole
from mural_tf.progress import tell, tqdm
from mural_tf.quiet import quiet_imports
from mural_tf.remote_folders import local_model
from mural_tf.search import collect
from mural_tf.search.collect import Found, Piece, Seen, Unreadable
from mural_tf.search.index import PROBES, SKIPPED, Fingerprint, take
from mural_tf.search.items import IMAGES, Item, read_image, to_json
from mural_tf.search.ranking import CAPTIONS, prompt_of
from mural_tf.trust import is_trusting
from mural_tf.work import Engine, Step

MODEL = "model.json"
FORMAT = 1  # raised when the same input would give other bytes than before
DTYPES = ("float32", "float16")
BLOCK = 4096  # items given to the encoder in one call, which sorts texts by length
BATCH = {"images": 64, "texts": 256}  # of one run of the encoder


@dataclasses.dataclass
class Embedded(Tally):
    """What became of the items of a shard, or of all."""

    THINGS: ClassVar[str] = "images and texts"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to embed.

    Attributes:
      kind: "images" or "texts".
      split: of folders of the project's TFRecords; "": every split.
      dtype: of the stored vectors, "float32" or "float16".
      batch_size: of one run of the encoder; 0: 64 images, 256 texts.
      shard_items: in a shard, about; it is what a killed run loses of each worker.
      workers: processes of this machine; 0 works in the calling process.
      beam: flags of Apache Beam, to work elsewhere than on this machine; see `work.Engine`.
      max_skipped_fraction: of what was read; above it the work stops.
    """

    kind: str = IMAGES
    split: str = ""
    dtype: str = "float32"
    batch_size: int = 0
    shard_items: int = 16_384
    workers: int = 1
    beam: str = ""
    max_skipped_fraction: float = 0.01

    def __post_init__(self):
        check_fraction(self.max_skipped_fraction, "max_skipped_fraction")

    @property
    def batch(self) -> int:
        """Items in one run of the encoder."""
        return self.batch_size or BATCH[self.kind]

    def worker_threads(self) -> int:
        """Returns TensorFlow's threads in a worker, the cores divided by the workers; 0 leaves them to it."""
        if self.beam or not self.workers:
            return 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // self.workers)


def embed(
    model: str,
    sources: Sequence[str],
    output: str | os.PathLike,
    settings: Settings,
    restart: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Embeds what the sources hold into the folder `output`, which appears when it is complete.

    Args:
      model: a folder that `mural_tf.load` takes; every worker reads it.
      sources: see `collect.find`; their order does not matter.
      output: a folder that does not exist yet, is empty, or holds these very embeddings.
      settings: see `Settings`. With workers, a script calls this below `if __name__ == "__main__":`.
      restart: start again instead of going on with a run that stopped.
      progress: whether to show a bar.

    Raises:
      UserError: unusable sources, too much of them skipped, something else in `output`, unfinished work on
        something else beside it, or a full disk.
    """
    engine = Engine(settings.workers, settings.beam)  # raises for flags that are none
    here = local_model(model)
    if not here.is_dir():
        raise UserError(f"The model folder {model} does not exist; give a workdir or an export.")
    files = sorted(dict(collect.list_files(settings.kind, sources, settings.split)).items())
    groups = collect.cut_files(settings.kind, files, settings.shard_items)
    output, identity = as_path(output), _identity(here, sources, groups, settings)
    folder = output.parent / f".{output.name}.embedding"
    with shards.work_in(folder, output, identity, restart, DESCRIPTION, "set of embeddings") as unfinished:
        if unfinished:
            if engine.workers:
                tell(f"Loading {model} in every worker …")
            _run(engine, collect.absolute(model), groups, folder, settings, progress)
            _finish(folder, output, identity, len(groups), settings)
    return output


def _identity(model: pathlib.Path, sources: Sequence[str], groups: Sequence, settings: Settings) -> dict:
    """Returns what decides the bytes of embeddings, as JSON values."""
    read = hashlib.blake2b(json.dumps(groups).encode(), digest_size=8)
    for path in collect.side_files(unit.path for pieces in groups for _, unit in pieces):
        read.update(path.read_bytes())
    return {
        "name": "embeddings",
        "format": FORMAT,
        "sources": sorted(map(collect.absolute, sources)),
        "files": read.hexdigest(),
        "model": model_digest(model),
        "kind": settings.kind,
        "split": settings.split,
        "dtype": settings.dtype,
        "batch_size": settings.batch,
        "shard_items": settings.shard_items,
    }


def _run(
    engine: Engine, model: str, groups: list[list[Piece]], folder: pathlib.Path, settings: Settings, progress: bool
) -> None:
    """Makes all shards that are missing, with a bar."""
    jobs = [(number, groups[number]) for number in shards.missing_shards(folder, len(groups))]
    if not jobs:
        return
    sizes = [sum(unit.size for _, unit in pieces) for pieces in groups]
    step = Step("Embed", make_worker, (model, folder, settings, is_trusting()))
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, desc="Embedding", disable=not progress) as bar:
        watch = shards.Watch(folder, sizes, settings.max_skipped_fraction, bar, Embedded())
        engine.map(step, jobs, folder, watch)


# What a worker does.


def make_worker(model: str, folder: pathlib.Path, settings: Settings, trust: bool) -> Callable:
    """Returns what embeds a shard; called once in every worker.

    Raises:
      UserError: the model cannot be loaded, or is another one than that of the finished shards.
    """
    with _LOADING:  # an engine elsewhere makes a step for each of its threads: they share the model
        embedder, fingerprint = load_model(model, settings.worker_threads(), trust)
    keep_model(folder, fingerprint, f"The unfinished work in {folder}")
    width = fingerprint.probes.shape[1]

    def work(element: tuple[int, Sequence[Piece]]) -> None:
        make_shard(embedder, folder, *element, settings, width, Seen(settings.kind))

    return work


def keep_model(folder: pathlib.Path, fingerprint: Fingerprint, what: str) -> None:
    """Says in an unfinished folder, `what`, which model makes its shards; raises `UserError` if another one did."""
    if not (folder / PROBES).is_file():
        write_whole(folder / MODEL, json.dumps({"path": fingerprint.path, "step": fingerprint.step}))
        save_array(folder / PROBES, fingerprint.probes)
    Fingerprint(np.array(read_array(folder / PROBES)), "of the finished shards").check(fingerprint, what)


_LOADING = threading.Lock()


@functools.lru_cache(maxsize=1)
def load_model(model: str, threads: int, trust: bool) -> tuple:
    """Loads a model; returns it with its fingerprint. `threads`: of TensorFlow, unless it has started already."""
    quiet_imports()
    from mural_tf.lite.runtime import set_threads
    from mural_tf.loading import LITE, load

    set_threads(threads)
    if threads and not (local_model(model) / LITE).is_file():
        import tensorflow as tf

        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        except RuntimeError:  # in a process that computed before
            pass
    embedder = load(model, trust=trust)
    return embedder, take(embedder)


def make_shard(
    embedder,
    folder: pathlib.Path,
    number: int,
    pieces: Sequence[Piece],
    settings: Settings,
    width: int,
    seen: Seen,
    choose: Callable[[Iterator[Found]], Iterator[Found]] = iter,
) -> None:
    """Encodes what pieces hold and writes it as a shard of an unfinished folder: the one way to vectors on disk.

    The same pieces give the same bytes.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`.
      folder: holds the folder `parts`.
      width: D of the vectors.
      seen: what was met before is left out and counted; what is met now is added.
      choose: leaves out further items, or gives the vector of one in place of its content.
    """
    tally, rows, vectors = Embedded(), [], [np.zeros((0, width), settings.dtype)]

    def distinct() -> Iterator[Found]:
        for entry in collect.read(settings.kind, pieces):
            if seen.add(entry):
                yield entry
            else:
                tally.left_out.add("repeated", entry.name if isinstance(entry, Unreadable) else entry[0].name)

    found = choose(distinct())
    for first in found:
        block = itertools.chain([first], itertools.islice(found, BLOCK - 1))
        items, encoded, unreadable = encode(embedder, block, settings.kind, settings.batch)
        for entry in unreadable:
            tally.skip(entry.kind, entry.name, entry.count)
        tally.written += len(items)
        rows += items
        vectors.append(encoded.astype(settings.dtype))
    write_shard(folder, number, pieces, rows, np.concatenate(vectors), tally)


def part_path(folder: pathlib.Path, number: int, kind: str) -> pathlib.Path:
    """Where a shard's "vectors" or "items" lie while others are made."""
    return folder / "parts" / f"{number:06d}.{kind}.{ENDINGS[kind]}"


def write_shard(
    folder: pathlib.Path, number: int, pieces: Sequence[Piece], items: Sequence[Item], vectors: np.ndarray, tally: Tally
) -> None:
    """Writes a shard's files, each whole, and last the manifest of what was read; `vectors`: [N, D] of its items."""
    array = io.BytesIO()
    np.save(array, vectors)
    languages = collections.Counter(item.language for item in items if item.language)
    of_items = {"records": len(items), "texts": len(items), "languages": dict(sorted(languages.items()))}
    parts = []
    for kind, content in {"items": b"".join(map(to_json, items)), "vectors": array.getvalue()}.items():
        path, checksum = part_path(folder, number, kind), f"{google_crc32c.value(content):08x}"
        with whole(path) as partial:
            partial.write_bytes(content)
        parts.append(Part(kind, split="", name=path.name, bytes=len(content), crc32c=checksum, **of_items))
    shards.write_manifest(folder, number, Manifest(tally, parts, [[*unit[:4]] for _, unit in pieces]))


def encode(embedder, found: Iterable[Found], kind: str, batch_size: int, progress: bool | None = False):
    """Returns (items, float32 [N, D], unreadable ones) of what was found; images stream through the encoder.

    Items that came with a vector in place of their content keep it, and are the first ones.
    """
    items: list[Item] = []
    known: list[tuple[Item, np.ndarray]] = []
    unreadable: list[Unreadable] = []

    def contents():
        for entry in found:
            if isinstance(entry, Unreadable):
                unreadable.append(entry)
            elif isinstance(entry[1], np.ndarray):
                known.append(entry)
            else:
                items.append(entry[0])
                yield entry[1]

    if kind == IMAGES:
        embeddings, kept = embedder.encode_image(
            contents(), batch_size=batch_size, on_error="skip", progress=bool(progress)
        )
    else:
        prompt = prompt_of(embedder, CAPTIONS)
        embeddings = embedder.encode_text(list(contents()), batch_size=batch_size, progress=bool(progress), **prompt)
        kept = np.arange(len(items))
    readable = set(kept.tolist())
    unreadable += [_why(kind, item) for row, item in enumerate(items) if row not in readable]
    if known:
        embeddings = np.concatenate([np.stack([vector for _, vector in known]), embeddings])
    return [*(item for item, _ in known), *(items[row] for row in kept)], embeddings, unreadable


def _why(kind: str, item: Item) -> Unreadable:
    try:
        pictures.for_the_encoder(read_image(item))
        reason = "damaged: it does not decode"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    return Unreadable(item.name, f"{reason[0].upper()}{reason[1:]}.", collect.key_of(kind, item))


# The end.


def _finish(folder: pathlib.Path, output: pathlib.Path, identity: dict, count: int, settings: Settings) -> None:
    """Turns the folder of finished shards into `output`; every step can be repeated after a kill."""
    tally = Embedded()
    manifests = shards.finished(folder, count, tally, settings.max_skipped_fraction)
    if not tally.written:
        raise UserError("Nothing to embed: " + "; ".join(line.strip() for line in tally.lines()) + ".")
    complete = shards.complete_folder(folder, output)
    complete.mkdir(exist_ok=True)
    for number, manifest in enumerate(manifests):
        for part in manifest.parts:
            name = shard_name(part.kind, number, count)
            shards.rename_part(folder, part, complete / name)
            part.name = name
        text = json.dumps(dataclasses.asdict(manifest), ensure_ascii=False)
        write_whole(complete / shard_name("manifest", number, count), text)
    shards.join_skipped(folder, count, complete / SKIPPED)
    probes = np.array(read_array(folder / PROBES))
    save_array(complete / PROBES, probes)
    made_by = {**read_json(folder / MODEL), "digest": identity["model"], "identity": str(Fingerprint(probes))}
    described = {
        **identity,
        "made_by": made_by,
        "count": tally.written,
        "embedding_size": int(probes.shape[1]),
        "shards": count,
        **tally.described(),
    }
    write_whole(complete / DESCRIPTION, json.dumps(described, indent=1, ensure_ascii=False) + "\n")
    shards.publish_work(folder, output)


def describe(output: pathlib.Path) -> str:
    """Returns what a folder of embeddings holds and what was skipped, in lines to print."""
    found = read_json(output / DESCRIPTION)
    lines = [
        f"{found['count']:,} {found['kind']} in {output}: {found['dtype']} [N, {found['embedding_size']}] in "
        f"{found['shards']} shards, made by {found['made_by']['path']} [{found['made_by']['identity']}]"
    ]
    for word in ("skipped", "left_out"):
        for kind, entry in sorted(found[word].items(), key=lambda item: -item[1]["count"]):
            lines.append(f"{word.replace('_', ' ')} {entry['count']} x {kind}, first at {entry['first']}")
    return "\n".join(lines)
