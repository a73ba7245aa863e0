"""The pictures in a folder, and the other files."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from mural_lite.pictures import ENDINGS

# Folders that programs put among pictures, with thumbnails, forks and indexes.
_OF_PROGRAMS = ("@eaDir", "__MACOSX", "System Volume Information", "$RECYCLE.BIN")


def picture_files(folder: pathlib.Path, more: Sequence[str] = ()) -> tuple[list[pathlib.Path], dict[str, list]]:
    """Returns the sorted picture files in a folder and below it, and the other files as {reason: paths}.

    Pictures that are hidden, or that programs made (thumbnails in "@eaDir"), are among the other files. Other files
    that are hidden are passed over. Example of the other files: {"file that is not a picture (.txt)": [a/b.txt]}.

    Args:
      folder: a folder of this machine or in a store.
      more: endings of further files that are returned like pictures, in small letters without the point.
    """
    files = []
    left_out = {}  # reason -> paths
    for path in sorted(folder.rglob("*")):
        names = str(path.relative_to(folder)).split("/")
        is_hidden = any(name.startswith(".") or name in _OF_PROGRAMS for name in names)
        is_wanted = path.suffix.lower()[1:] in (*ENDINGS, *more)
        if is_wanted and not is_hidden:
            files.append(path)
            continue
        reason = ""
        if is_wanted and path.is_file():
            reason = "picture that is hidden, or in a folder of a program"
        elif is_wanted or is_hidden:
            continue
        elif isinstance(path, pathlib.Path) and path.is_symlink() and path.is_dir():  # stores have no links
            reason = "link to a folder, which is not followed: name its target"
        elif path.is_file():
            reason = f"file that is not a picture ({path.suffix or 'no ending'})"
        if reason:
            left_out.setdefault(reason, []).append(path)
    return files, left_out
