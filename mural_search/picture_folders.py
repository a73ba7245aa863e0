"""The pictures in a folder, and the other files."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from mural_lite.pictures import ENDINGS

# Folders that programs put among pictures, with thumbnails, forks and indexes.
_OF_PROGRAMS = ("@eaDir", "__MACOSX", "System Volume Information", "$RECYCLE.BIN")


def picture_files(folder: pathlib.Path, more: Sequence[str] = ()) -> tuple[list[pathlib.Path], dict[str, list]]:
    """Returns the picture files in and below a folder, sorted, and {why others are not taken: paths}.

    Hidden files are not taken, nor the files of programs, for example thumbnails in "@eaDir".

    Args:
      folder: a folder of this machine or a store.
      more: endings of further files to return, without the point.
    """
    files = []
    others = {}  # reason -> paths
    for path in sorted(folder.rglob("*")):
        parts = str(path.relative_to(folder)).split("/")
        is_wanted = path.suffix.lower()[1:] in (*ENDINGS, *more)
        is_hidden = any(part.startswith(".") or part in _OF_PROGRAMS for part in parts)
        if is_wanted and not is_hidden:
            files.append(path)
        elif isinstance(path, pathlib.Path) and path.is_symlink() and path.is_dir() and not is_hidden:
            others.setdefault("link to a folder, which is not followed: name its target", []).append(path)
        elif is_wanted and path.is_file():
            others.setdefault("picture that is hidden, or in a folder of a program", []).append(path)
        elif not is_wanted and not is_hidden and path.is_file():
            others.setdefault(f"file that is not a picture ({path.suffix or 'no ending'})", []).append(path)
    return files, others
