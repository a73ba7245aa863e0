"""Where the pictures of a table lie: files by name below a folder, downloads by address, or in the table itself."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.hashes import text_hash
from mural_lite.img2dataset import DownloadedImages, is_download
from mural_lite.pictures import ENDINGS, BadImage, path_below
from mural_search.picture_folders import picture_files
from mural_search.tables.own_tables import DOWNLOADS, PICTURES, OwnTable
from mural_search.tables.table_rows import Value, is_encoded, names_picture, several, without_suffix


def pictures_of(value: Value) -> Sequence[str | bytes]:
    """Returns the pictures of a cell, each as its bytes, its name or its address.

    A text may name several pictures, "a.jpg|b.jpg", or be a picture in base64.
    """
    pictures: list[str | bytes] = []
    for part in several(value):
        content = part
        if isinstance(part, str):
            content = _decoded(part)
        if content is not None:
            pictures.append(content)
        else:
            pictures += map(without_suffix, _divided(part))
    return tuple(filter(None, pictures))


_TO_STANDARD = bytes.maketrans(b"-_", b"+/")  # from the base64 of addresses


def _decoded(text: str) -> bytes | None:
    """Returns the bytes of the picture in a data URL or a text in base64; `None` for another text."""
    text = text.strip()
    if not is_encoded(text):
        return None
    if not text.startswith("data:"):
        return _from_base64(text)
    header, _, body = text.rpartition(",")  # "data:image/png;base64,iVBORw0K…"
    if header.endswith("base64"):
        return _from_base64(body)
    return unquote_to_bytes(body)


def _from_base64(text: str) -> bytes | None:
    """Returns the bytes that a text in base64 encodes; `None` for a damaged text."""
    characters = unquote_to_bytes(text).translate(_TO_STANDARD)
    # Programs often leave out the "=" at the end. `b64decode` fails if they are too few, and ignores further "=".
    padded = characters.rstrip(b"=") + b"=="
    try:
        return base64.b64decode(padded)
    except ValueError:
        return None


def _divided(text: str) -> Sequence[str]:
    """Returns the names of pictures in a text: its parts, if all of several name pictures, or the stripped text."""
    parts = [part for part in map(str.strip, re.split(r"[|;,\n]", text)) if part]
    if len(parts) > 1 and all(map(names_picture, parts)):
        return parts
    return (text.strip(),)


class Pictures:
    """The pictures that a table names or holds.

    Args:
      table: the table.
      images: the folder of the pictures' files, or of img2dataset's downloads; "": the table's folder.

    Attributes:
      folder: the folder of the pictures.

    Raises:
      UserError: there is no such folder.
    """

    def __init__(self, table: OwnTable, images: str):
        self.folder = as_path(images) if images else table.folder
        if not self.folder.is_dir():
            raise UserError(f"--images={images}: there is no such folder.")
        # Whether the names are of files that were found in the user's folder, and so may be links to files elsewhere.
        self._are_listed = table.file_type == PICTURES and not images
        self._downloads = None
        if table.file_type != DOWNLOADS and is_download(self.folder):  # a download's own pictures come with its rows
            self._downloads = DownloadedImages(self.folder)

    def is_there(self, value: Value) -> bool:
        """Whether a value of a cell holds or names a picture that is there and may be read."""
        try:
            return any(self._content(picture) or self._find(picture) is not None for picture in pictures_of(value))
        except BadImage:
            return False

    def file(self, value: str | bytes, keep: pathlib.Path) -> pathlib.Path | None:
        """Returns the file of a picture; writes it if the table or a download holds it; `None` if it is not there.

        Args:
          value: the picture as `pictures_of` returns it: its name, its address or its bytes.
          keep: the folder into which a picture without a file of its own is written; it is made if it is not there.

        Raises:
          BadImage: the file may not be read, because it is outside of the folder.
        """
        content = self._content(value)
        if content is None:
            return self._find(value)
        path = keep / hashlib.blake2b(content, digest_size=16).hexdigest()
        if not path.is_file():
            keep.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".partial").write_bytes(content)
            path.with_suffix(".partial").replace(path)
        return path

    def _content(self, value: str | bytes) -> bytes | None:
        """Returns the bytes of a picture that has no file of its own, in the table or downloaded; otherwise `None`."""
        if isinstance(value, bytes):
            return value
        if self._downloads is None:
            return None
        return self._downloads.get(value, self)

    def _find(self, value: str) -> pathlib.Path | None:
        """Returns the file that a name or address means; `None` if it is not there, or pictures are downloads.

        A file of another ending is taken if no other file has its stem: "hat.png" for "Hat.jpg". Raises `BadImage` for
        a file outside of the folder.
        """
        if self._downloads is not None:
            return None
        names = list(_names(value, self.folder))
        path, refusal = self._find_by_name(names)
        if path is not None:
            return path
        similar_file = self._find_by_stem(value, names)
        if similar_file is not None:
            path = path_below(self.folder, str(similar_file))
            return path if path.is_file() else None
        if refusal is not None:
            raise refusal
        return None

    def _find_by_name(self, names: Sequence[str]) -> tuple[pathlib.Path | None, BadImage | None]:
        """Returns (the file of the first name that has a file, the first refusal), either of which may be `None`.

        After a refused name, such as "/home/me/hat.jpg", the search goes on: the next name, "hat.jpg", may be the file.
        """
        refusal = None
        for name in names:
            try:
                path = self.folder / name if self._are_listed else path_below(self.folder, name)
                if name and path.is_file():
                    return path, None
            except BadImage as error:
                if refusal is None:
                    refusal = error
            except (OSError, ValueError):  # no file can have this name, which may be too long
                pass
        return None, refusal

    def _find_by_stem(self, value: str, names: Sequence[str]) -> pathlib.Path | None:
        """Returns the only file, relative to the folder, that has the stem of one of the names; otherwise `None`.

        `value` is the picture's name in the table, whose folder the file must fit.
        """
        stems = [_plain_stem(name) for name in names]
        for stem in (*stems, *map(_without_size, stems)):
            file = self._by_stem.get(stem)
            if file is not None and _allows_folder(value, os.path.dirname(str(file))):
                return file
        return None

    def location(self, address: str) -> tuple[int, int, int] | None:
        """Returns (number of its shard, offset and size in bytes) of a picture; `None` if it was not downloaded."""
        return self._locations.get(text_hash(address))

    @functools.cached_property
    def _locations(self) -> Mapping[int, tuple[int, int, int]]:
        """{hash of an address: (shard, offset, size)} of the downloads."""
        locations: dict[int, tuple[int, int, int]] = {}
        for shard in range(len(self._downloads.shards)):
            for address, offset, size in self._downloads.addresses(shard):
                locations.setdefault(text_hash(address), (shard, offset, size))
        return locations

    @functools.cached_property
    def _by_stem(self) -> Mapping[str, pathlib.Path | None]:
        """{stem, as `_plain_stem` makes it: file, relative to the folder}; `None` for a stem of several files."""
        files: dict[str, pathlib.Path | None] = {}
        paths, _ = picture_files(self.folder)
        for path in paths:
            stem = _plain_stem(path.name)
            files[stem] = None if stem in files else path.relative_to(self.folder)
        return files


def _names(value: str, folder: pathlib.Path) -> Iterator[str]:
    """Yields the paths, relative to `folder`, that a picture's name or address may mean: "hats/1.jpg", then "1.jpg"."""
    if "://" in value:
        with contextlib.suppress(ValueError):
            path = unquote(urlsplit(value).path).strip("/")
            yield os.path.basename(path)
            yield path
        return
    value = value.replace("\\", "/")
    if os.path.isabs(value):
        yield os.path.relpath(value, str(folder))
    else:
        yield value
    yield os.path.basename(value)


def _allows_folder(value: str, folder: str) -> bool:
    """Whether a picture's name may mean a file of its stem in a sub-folder: "shoes/1.png" may not mean "hats/1.jpg".

    Args:
      value: the picture's name, or its address, which has the folders of its server and may mean a file anywhere.
      folder: the sub-folder, relative to the pictures' folder; "" for this folder itself.
    """
    named_folder = os.path.dirname(os.path.normpath(value.replace("\\", "/")))
    if "://" in value or not named_folder or not folder:
        return True
    return _plain_stem(named_folder) == _plain_stem(folder)


def _plain_stem(value: str) -> str:
    """Returns a picture's name without its folder and ending, in lower case: "hat" for "shop/Hat.jpg"."""
    name = os.path.basename(value)
    stem, ending = os.path.splitext(name)
    if ending.lower()[1:] in ENDINGS:
        name = stem
    return unicodedata.normalize("NFC", name).casefold()  # some systems write é as two characters


def _without_size(stem: str) -> str:
    """Returns a stem without its size: "hat" for "hat-scaled" and "hat-300x200", as WordPress names smaller copies.

    Also "1000" for "1000.0", which pandas writes for a file with a number as its name.
    """
    return re.sub(r"(-(scaled|\d+x\d+)|\.0)$", "", stem)
