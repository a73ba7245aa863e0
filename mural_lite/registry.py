"""Parts that other packages register by entry points, so that this one need not know them.

mural.models          (folder, checkpoint, trust, made_states) -> Embedder, None for a folder of another kind
mural.data            (the configuration's branch `data`) builds the data set that `data.source` names
mural.importers       a `mural_tf.pretrained.importer.Importer`
mural.weight_files    file -> `mural_tf.pretrained.weight_files.WeightFile`; the name is the file's ending
"""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any


@functools.cache
def registered(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Returns {name: entry point} of all installed packages; `load()` of an entry point imports what it names."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


def load_registered(group: str, name: str) -> Any:
    """Returns the object that a package has registered under a name of a group, `None` if there is no such name."""
    entry = registered(group).get(name)
    if entry is None:
        return None
    return entry.load()
