"""Shards of work: their manifests, and the hidden folder in which they wait until all are finished.

A worker writes a shard's parts and, last, its manifest. The same command again skips the shards with a manifest.
Counts come from manifests, because engines repeat work, and their own counters count it twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Sequence

from mural_lite.dataset_folder import is_built
from mural_lite.errors import UserError
from mural_lite.files import (
    exclusive_lock,
    publish,
    read_json,
    remove_partial,
    remove_tree,
    storage_errors,
    write_whole,
)
from mural_lite.progress import tqdm
from mural_lite.skipped import Tally

PLAN = "plan.json"


@dataclasses.dataclass
class Part:
    """A file of a shard: TFRecords, vectors or items.

    `kind` and `split` say which records it holds, `name` is its name in the folder `parts`, `records` and `texts` are
    counts, and `languages` counts texts by language, text pairs by "a b", the languages of `text_a` and `text_b`.
    """

    kind: str
    split: str
    name: str
    bytes: int
    crc32c: str
    records: int
    texts: int
    languages: dict[str, int]


@dataclasses.dataclass
class Manifest:
    """The contents of a finished shard; the tally's `places` are in another file.

    `sources`: [path, number of the part, parts of the file, bytes] for each file of the input.
    """

    tally: Tally
    parts: list[Part]
    sources: list[list] = dataclasses.field(default_factory=list)


def manifest_path(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Returns the path of the file whose presence says that a shard is finished."""
    return folder / "parts" / f"{number:06d}.json"


def missing_shards(folder: pathlib.Path, count: int) -> list[int]:
    """Returns the numbers of the shards that are not finished."""
    names = {path.name for path in (folder / "parts").glob("*.json")}  # one request to a store
    return [number for number in range(count) if manifest_path(folder, number).name not in names]


def places_path(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Returns the path of the file that lists every item that a shard skipped, as lines "problem, tab, place"."""
    return folder / "parts" / f"{number:06d}.skipped.tsv"


def read_manifest(folder: pathlib.Path, number: int) -> Manifest:
    """Returns the manifest of a shard that is finished."""
    content = json.loads(manifest_path(folder, number).read_text(encoding="utf-8"))
    return Manifest(Tally(**content["tally"]), [Part(**part) for part in content["parts"]], content["sources"])


def write_manifest(folder: pathlib.Path, number: int, manifest: Manifest) -> None:
    """Writes and clears the places of skipped items, and writes the manifest last: then the shard is finished."""
    if manifest.tally.places:
        lines = "".join(f"{problem}\t{location}\n" for problem, location in manifest.tally.places)
        write_whole(places_path(folder, number), lines)
        manifest.tally.places.clear()
    write_whole(manifest_path(folder, number), json.dumps(dataclasses.asdict(manifest), ensure_ascii=False))


@contextlib.contextmanager
def work_in(
    folder: pathlib.Path, output: pathlib.Path, identity: dict, restart: bool, description: str, noun: str
) -> Iterator[bool]:
    """Opens `folder` for the work that makes `output`, and gives `True`; gives `False` if `output` is built already.

    The block works in one process per machine at a time. Stores have no locks: two processes with the same work write
    the same bytes there, and the slower process prints a message.

    Args:
      folder: hidden, next to `output`; it keeps the shards that a killed run finished, unless `restart`.
      output: the folder to be made.
      identity, description, noun: as `identity`, `name` and `noun` of `is_built`.

    Raises `UserError` if `output` or `folder` holds something else, and for a full disk and the like.
    """
    if is_built(output, identity, description, noun):
        remove_tree(folder)  # left by a run that was killed before its last step
        yield False
        return
    with storage_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(output), exclusive_lock(output.parent / f".{output.name}.lock"):
        if is_built(output, identity, description, noun):  # another process finished it while we waited
            yield False
            return
        _open_folder(folder, identity, restart)
        try:
            yield True
        except KeyboardInterrupt:
            message = "Interrupted. Finished shards are kept: run the same command again to go on."
            raise KeyboardInterrupt(message) from None
        except (OSError, UserError):
            # In a store another process may have taken this one's parts: then its result appears soon.
            if isinstance(output, pathlib.Path) or not _appears_soon(output / description):
                raise
            remove_tree(folder)
            print(f"Another process made {output} meanwhile.", flush=True)


def _appears_soon(path: pathlib.Path) -> bool:
    """Whether a store has a file now or within ten seconds."""
    with contextlib.suppress(OSError, UserError):
        for _ in range(5):
            if path.is_file():
                return True
            time.sleep(2)
    return False


def _open_folder(folder: pathlib.Path, identity: dict, restart: bool) -> None:
    """Makes the folder of the work that `identity` describes, or, without `restart`, keeps its finished shards.

    Raises `UserError` if the folder holds finished shards of other work.
    """
    plan = folder / PLAN
    if restart:
        remove_tree(folder)
    try:
        is_same_work = plan.is_file() and read_json(plan) == identity
    except UserError as error:
        raise UserError(f"Unfinished work cannot go on: {error} Start again with --restart.") from None
    if is_same_work:
        remove_partial(folder)
        return
    if any((folder / "parts").glob("*.json")):
        raise UserError(
            f"{folder} holds unfinished work on other sources or with other settings: run that to its end, or start "
            "again with --restart."
        )
    remove_tree(folder)
    (folder / "parts").mkdir(parents=True)
    write_whole(plan, json.dumps(identity, ensure_ascii=False))


class Watch:
    """Adds the manifests in `folder` to a tally and a bar as they appear, and checks the bound on skipped items.

    `sizes`: bytes of the input of each shard; `max_fraction`: as in `Tally.check`.
    """

    def __init__(self, folder: pathlib.Path, sizes: Sequence[int], max_fraction: float, bar: tqdm, tally: Tally):
        self.folder = folder
        self.sizes = sizes
        self.max_fraction = max_fraction
        self.bar = bar
        self.tally = tally
        self.waiting = set(range(len(sizes)))
        self.bytes_done = 0

    def __call__(self) -> None:
        """Adds the shards that were finished since the last call; raises `UserError` as `Tally.check`."""
        finished = self.waiting.difference(missing_shards(self.folder, len(self.sizes)))
        self.waiting -= finished
        for number in finished:
            self.tally.add(read_manifest(self.folder, number).tally)
            self.bar.update(self.sizes[number])
            self.bytes_done += self.sizes[number]
        counts = f"{self.tally.written} written, {self.tally.skipped.total} skipped"
        self.bar.set_postfix_str(counts, refresh=False)
        if self.bytes_done:
            share_done = self.bytes_done / sum(self.sizes)
            self.tally.check(self.max_fraction, share_done)


def read_manifests(folder: pathlib.Path, count: int, tally: Tally, max_fraction: float) -> list[Manifest]:
    """Returns the manifests of all shards, and adds their counts to `tally`; raises `UserError` as `Tally.check`."""
    manifests = [read_manifest(folder, number) for number in range(count)]
    for manifest in manifests:  # in order, so that "first" means first in the plan
        tally.add(manifest.tally)
    tally.check(max_fraction)
    return manifests


def complete_folder(folder: pathlib.Path, output: pathlib.Path) -> pathlib.Path:
    """Returns the folder in which files get their final names: `folder`/complete, or `output` itself in a store."""
    if isinstance(folder, pathlib.Path):
        return folder / "complete"
    return output


def publish_work(folder: pathlib.Path, output: pathlib.Path) -> None:
    """Renames the complete folder to `output` and removes `folder`; in a store the files are in `output` already."""
    complete = complete_folder(folder, output)
    if complete != output:
        if output.exists():
            output.rmdir()  # empty, or `is_built` would have raised
        publish(complete, output)
    remove_tree(folder)


def rename_part(folder: pathlib.Path, part: Part, name: pathlib.Path) -> None:
    """Renames a part to the path `name` in the data set, unless a killed run has done it already.

    Raises `UserError`, and removes the shard's manifest, if the part has another size than the manifest says.
    """
    old_name = folder / "parts" / part.name
    current = old_name if old_name.is_file() else name
    size = None
    if current.is_file():
        size = current.stat().st_size
    if size != part.bytes:
        # Names of parts begin with the six digits of their shard's number.
        manifest_path(folder, int(part.name[:6])).unlink(missing_ok=True)
        raise UserError(
            f"{current} has {size} bytes, but its manifest says {part.bytes}: the file changed or was cut off. Run the "
            "same command again: it will be made anew."
        )
    if current == old_name:
        old_name.replace(name)


def join_skipped(folder: pathlib.Path, count: int, path: pathlib.Path) -> None:
    """Writes the lists of the items that `count` shards skipped into one file, if there are such items."""
    names = {entry.name for entry in (folder / "parts").glob("*.skipped.tsv")}  # one request to a store
    if names:
        with path.open("wb") as joined:
            for number in range(count):
                file = places_path(folder, number)
                if file.name in names:
                    joined.write(file.read_bytes())
