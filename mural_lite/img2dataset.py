"""Image-text pairs downloaded by img2dataset, in any of its output formats, read sample by sample or by address.

    webdataset   00000.tar (or .tar.gz, .tgz) with 000000000.jpg, .txt, .json
    files        00000/000000000.jpg, .txt, .json
    tfrecord     00000.tfrecord with features key, jpg, txt, json
    parquet      00000.parquet with columns key, jpg, caption (or txt), url, status, …

The metadata (JSON or columns) hold url, caption, and the columns that `save_additional_columns` named.
"""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import tarfile
from collections.abc import Container, Iterator, Sequence
from typing import IO, Any, NamedTuple

from google.protobuf.message import DecodeError

from mural_lite import tfrecord
from mural_lite.errors import UserError
from mural_lite.files import as_path, open_path
from mural_lite.parquet import UnreadableParquet, open_parquet, read_rows
from mural_lite.pictures import ENDINGS, MAX_BYTES, BadImage, path_below, read_file
from mural_lite.record_format import Example
from mural_lite.text_files import Problem, decode, is_text, open_binary, parse_object, refuse_failure

TARS = ("*.tar", "*.tar.gz", "*.tgz")
READ = (*ENDINGS, "txt", "json")  # endings of a sample's members
NOT_REGULAR = "not a regular file"
# Raised while a damaged tar is read; thousands of pax headers, for example, are read by recursion.
DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, LookupError, ArithmeticError, RecursionError)
NOT_TEXT = "name that is not text"


class Sample(NamedTuple):
    """One downloaded image."""

    key: str  # img2dataset's number of the image
    image: bytes | None  # the file's content, `None` if only the metadata are read
    caption: Any  # as downloaded; it may be something else than text if it comes from the metadata
    metadata: dict[str, Any]  # the JSON or the row
    # (offset, size) of the image (tar) or the record (TFRecord) in the shard, (0, 0) in other formats
    position: tuple[int, int] = (0, 0)


def find_shards(directory: str | pathlib.Path) -> list[pathlib.Path]:
    """Returns the sorted shards of an img2dataset output: tars, else TFRecords, else folders like 00000, else Parquet.

    Raises `UserError` for a folder without shards.
    """
    directory = as_path(directory)
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder: expected img2dataset's output, such as {directory.parent}.")
    for patterns in (TARS, ("*.tfrecord",)):
        shards = sorted(itertools.chain.from_iterable(map(directory.glob, patterns)))
        if shards:
            return shards
    folders = sorted(path for path in directory.glob("*") if path.is_dir() and path.name.isdigit())
    if folders:
        return folders
    tables = [path for path in sorted(directory.glob("*.parquet")) if _may_hold_images(path)]
    if not tables:
        raise UserError(
            f"{directory} is not an output of img2dataset: it holds no .tar or .tar.gz, no .tfrecord, no folder like "
            "00000 and no .parquet with images."
        )
    return tables


def is_download(directory: pathlib.Path) -> bool:
    """Whether a folder has files as img2dataset writes them."""
    patterns = (*TARS, "*.tfrecord", "*_stats.json")
    return any(any(directory.glob(pattern)) for pattern in patterns)


def _may_hold_images(path: pathlib.Path) -> bool:
    """Whether a Parquet file has a column of images, or cannot be read."""
    try:
        return _image_name(open_parquet(path).schema_arrow.names) is not None
    except UnreadableParquet:  # it is reported when its rows are read
        return True


def read_samples(shard: pathlib.Path, on_problem: Problem, images: bool = True) -> Iterator[Sample]:
    """Yields a shard's samples in their order, and reports each part that cannot be used by `on_problem`.

    Without `images` each sample's `image` is `None`, and is not read where that is possible. Raises `UserError` if the
    disk or the store fails.
    """
    if shard.is_dir():
        return _from_files(shard, on_problem, images)
    if not shard.is_file():
        on_problem(NOT_REGULAR, str(shard))
        return iter(())
    readers = {".tfrecord": _from_tfrecord, ".parquet": _from_parquet}
    read_shard = readers.get(shard.suffix, _from_tar)
    return read_shard(shard, on_problem, images)


def _from_tar(shard: pathlib.Path, on_problem: Problem, images: bool) -> Iterator[Sample]:
    """Yields the samples of a tar file; members of one sample follow each other.

    Members of other endings are passed over next to their sample, such as key.cls, and reported elsewhere.
    """
    key = None
    members = {}
    others = []  # names of members of other endings since the sample before `key`
    for name, content, position in _members(shard, on_problem, images):
        stem, ending = split_name(name)
        if not ending:
            others.append(name)
            continue
        if stem != key:  # a new sample begins
            if members:
                yield from _sample(key, members, shard, on_problem)
            _report_others(others, (key, stem), shard, on_problem)
            others = []
            key = stem
            members = {}
        if ending in ENDINGS:
            members.update(image=content, position=position)
        else:
            members[ending] = content
    if members:
        yield from _sample(key, members, shard, on_problem)
    _report_others(others, (key,), shard, on_problem)


def split_name(name: str) -> tuple[str, str]:
    """Returns (key, ending) of a tar's member, for example ("00/7", "jpg") for "./00/7.JPG".

    The ending starts at the first point, as in webdataset, or else at the last; "" if it is not in `READ`.
    """
    path = name.removeprefix("./")
    folder, slash, base = path.rpartition("/")
    if base.startswith("."):  # a hidden file
        return path, ""
    for stem, _, ending in (base.partition("."), base.rpartition(".")):
        if ending.lower() in READ:
            return f"{folder}{slash}{stem}", ending.lower()
    return path, ""


def _report_others(names: Sequence[str], keys: Sequence[str | None], shard: pathlib.Path, on_problem: Problem) -> None:
    """Reports members, but for hidden files such as macOS's, that belong to none of the samples with these keys."""
    for name in names:
        is_hidden = os.path.basename(name).startswith(".")
        path = name.removeprefix("./")
        is_of_sample = any(key and path.startswith(f"{key}.") for key in keys)
        if not is_hidden and not is_of_sample:
            on_problem("member of a tar file that is not an image, text or metadata", f"{shard}, {name}")


class _BoundedReads:
    """A file for `tarfile`, which would read a header into memory at once, however long the header says it is."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes; raises `tarfile.ReadError` for more bytes than a member may have."""
        if size > MAX_BYTES:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)


def _members(shard: pathlib.Path, on_problem: Problem, images: bool) -> Iterator[tuple[str, bytes | None, tuple]]:
    """Yields (name, content, (offset, size)) of a tar file's members; content only of images, texts and metadata.

    Other members have `None` and (0, 0). A damaged header costs only its member, because `tarfile` looks for the next
    header; the loss is reported.
    """
    end = 0  # of the member before, where the next header is expected
    member = None
    try:
        with (
            open_binary(shard) as (file, _),
            tarfile.open(fileobj=_BoundedReads(file), mode="r:", ignore_zeros=True) as tar,
        ):
            for member in tar:
                if member.offset != end:
                    _report_damage(file, end, shard, on_problem)
                end = _end_of(member)
                _, ending = split_name(member.name)
                problem = _problem_with(member)
                if ending and problem:
                    on_problem(problem, f"{shard}, {member.name}")
                elif ending:
                    content = None
                    if images or ending not in ENDINGS:
                        content = tar.extractfile(member).read()
                    yield member.name, content, (member.offset_data, member.size)
                elif member.isreg():  # folders are not reported
                    yield member.name, None, (0, 0)
            _report_damage(file, end, shard, on_problem)
    except DAMAGE as error:
        refuse_failure(error, shard)
        last_read = member.name if member else "its beginning"
        on_problem("tar file that is damaged or cut off: what follows is lost", f"{shard}, after {last_read}")


def _end_of(member: tarfile.TarInfo) -> int:
    """Returns the position of the next header: a member's content is filled up to whole blocks."""
    size = member.size if member.isreg() and not member.issparse() else 0
    blocks = -(-size // tarfile.BLOCKSIZE)  # rounded up
    return member.offset_data + blocks * tarfile.BLOCKSIZE


def _report_damage(file: IO[bytes], position: int, shard: pathlib.Path, on_problem: Problem) -> None:
    """Reports a damaged header, which `tarfile` skipped, unless there are only zeros, which end a tar file."""
    position_before = file.tell()
    file.seek(position)
    if any(file.read(tarfile.BLOCKSIZE)):
        on_problem("tar header that is damaged: its member is lost", f"{shard}, byte {position}")
    file.seek(position_before)


def _problem_with(member: tarfile.TarInfo) -> str:
    """Returns why a member must not be read, "" if it may be read."""
    if not member.isreg() or member.issparse():  # a link may lead anywhere; a sparse file may claim any size
        return NOT_REGULAR
    if member.size > MAX_BYTES:
        return f"file of more than {MAX_BYTES:,} bytes"
    return ""


def _from_files(shard: pathlib.Path, on_problem: Problem, images: bool) -> Iterator[Sample]:
    """Yields the samples of a folder: each image with the .txt and .json of its name."""
    for path in sorted(path for path in shard.iterdir() if path.suffix.lower()[1:] in ENDINGS):
        try:
            members: dict[str, Any] = {"image": None, "position": (0, 0)}
            if images:
                members["image"] = _read(shard, path.name)
            for ending in ("txt", "json"):
                partner = path.with_suffix("." + ending)
                if partner.exists():
                    members[ending] = _read(shard, partner.name)
        except BadImage as error:
            on_problem(str(error), str(path))
        except (FileNotFoundError, NotADirectoryError) as error:  # a link that leads nowhere
            on_problem("file that cannot be read", f"{path} ({error.strerror})")
        except OSError as error:
            refuse_failure(error, path)
            raise
        else:
            yield from _sample(path.stem, members, shard, on_problem)


def _read(folder: pathlib.Path, name: str) -> bytes:
    """Returns the content of a file in a folder; raises `BadImage` if it is too large, or a link out of the folder."""
    return read_file(path_below(folder, name))


def _from_tfrecord(shard: pathlib.Path, on_problem: Problem, images: bool) -> Iterator[Sample]:
    """Yields the samples of a TFRecord file; each is a `tf.train.Example`."""
    for offset, record in tfrecord.read_all(shard, on_problem, open_path):
        try:
            members, key = parse_example(record)
        except DecodeError:
            on_problem("record that is not a tf.train.Example", f"{shard}, byte {offset}")
            continue
        if "image" in members and not images:
            members["image"] = None
        members["position"] = (offset, len(record))
        yield from _sample(key, members, shard, on_problem)


def parse_example(record: bytes) -> tuple[dict[str, Any], str]:
    """Returns (members, key) of a `tf.train.Example` of img2dataset; raises `DecodeError` for other bytes.

    The members are {"txt", "json", "image": bytes}, as far as they are there.
    """
    features = Example.FromString(record).features.feature
    values = {name: feature.bytes_list.value[0] for name, feature in features.items() if feature.bytes_list.value}
    members: dict[str, Any] = {name: values[name] for name in ("txt", "json") if name in values}
    image_name = _image_name(values)
    if image_name is not None:
        members["image"] = values[image_name]
    return members, values.get("key", b"").decode("utf-8", "replace")


def _from_parquet(shard: pathlib.Path, on_problem: Problem, images: bool) -> Iterator[Sample]:
    """Yields the samples of a Parquet file; each is a row."""
    for number, row in read_rows(shard, None, on_problem):
        location = f"{shard}, row {number}"
        image = row.pop(_image_name(row))
        caption = row.get("caption") or row.get("txt") or ""  # the column that is there, and not empty
        key = str(row.get("key") or f"{shard.stem}-{number}")
        if image is None:
            on_problem("image that was not downloaded", f"{location} ({row.get('status')})")
        elif not isinstance(image, bytes):
            on_problem("image that is not bytes", location)
        elif not is_text(key):
            on_problem(NOT_TEXT, location)
        else:
            if not images:
                image = None
            yield Sample(key, image, caption, row)


def _image_name(names: Container[str]) -> str | None:
    """Returns the name of the images' column or feature, which is their format, such as "jpg"; `None` without one."""
    for ending in ENDINGS:
        if ending in names:
            return ending
    return None


def _sample(key: str, members: dict[str, Any], shard: pathlib.Path, on_problem: Problem) -> Iterator[Sample]:
    """Yields the sample of a key's members, or reports that it lacks an image or has unusable texts.

    `members`: {"image": bytes, or `None` if images are not read, "position": as in `Sample`, "txt", "json": bytes}.
    """
    location = f"{shard}, {key}"
    if "image" not in members:
        on_problem("sample without an image", location)
        return
    try:
        caption, metadata = _texts_of(members)
    except UnicodeDecodeError:
        on_problem("text that is not UTF-8", location)
        return
    except ValueError:
        on_problem("metadata that is not a JSON object", location)
        return
    if not is_text(key):
        on_problem(NOT_TEXT, location)
        return
    yield Sample(key, members["image"], caption, metadata, members["position"])


def _texts_of(members: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns (caption, metadata) of a sample's members; raises `ValueError` if one of the members cannot be read.

    The caption is the member "txt", otherwise the metadata's caption, which may be something else than text.
    """
    metadata = {}
    if "json" in members:
        metadata = parse_object(members["json"])
    if "txt" in members:
        return decode(members["txt"]), metadata
    return metadata.get("caption") or "", metadata


class DownloadedImages:
    """Finds images by the address that img2dataset downloaded them from (formats webdataset, files and tfrecord).

    Raises `UserError` for a folder without shards, and for Parquet, where an image has no position.
    """

    def __init__(self, directory: pathlib.Path):
        self.shards = find_shards(directory)
        if self.shards[0].suffix == ".parquet":
            raise UserError(
                f"{directory}: img2dataset's Parquet output cannot be searched by address. Use it by itself "
                f"(img2dataset:{directory}), or download as webdataset."
            )

    def addresses(self, number: int) -> Iterator[tuple[str, int, int]]:
        """Yields (address, offset, size) of a shard's images; in a folder the offset is the file's number."""
        shard = self.shards[number]
        is_folder = not shard.suffix
        file_numbers = {}
        if is_folder:
            file_numbers = {path.stem: index for index, path in enumerate(_images_of(shard))}
        # Problems are not reported: an image that cannot be read will be missing when it is looked for.
        for sample in read_samples(shard, lambda *_: None, images=False):
            address = sample.metadata.get("url")
            if not address or not is_text(address):
                continue
            if is_folder:
                yield address, file_numbers[sample.key], 0
            else:
                yield address, *sample.position

    def get(self, name: str, decisions: Any) -> bytes | None:
        """Returns an image's content, `None` where it was not downloaded.

        Args:
          name: the image's address.
          decisions: a `Decided` of decide.py, which says in which shard, and where in it, the image is.

        Raises:
          BadImage: the file may not be read.
          UserError: the disk or the store failed.
          OSError: the content is damaged.
        """
        location = decisions.location(name)
        if location is None:
            return None
        number, offset, size = location
        shard = self.shards[number]
        try:
            if shard.is_dir():
                file = _images_of(shard)[offset]  # in a folder the offset is the file's number
                return read_file(path_below(shard, file.name))
            with open_binary(shard) as (content, _):  # offsets in a compressed tar are of its content
                content.seek(offset)
                data = content.read(size)
        except OSError as error:
            refuse_failure(error, shard)
            raise
        if shard.suffix != ".tfrecord":
            return data
        members, _ = parse_example(data)
        return members.get("image")


@functools.lru_cache(maxsize=16)
def _images_of(shard: pathlib.Path) -> list[pathlib.Path]:
    """Returns the sorted image files of a folder."""
    return sorted(path for path in shard.iterdir() if path.suffix.lower()[1:] in ENDINGS)
