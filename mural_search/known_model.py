"""The model of an index that follows its sources, opened only where something new must be embedded.

An index goes on with the encoders that made it: an export's `lite/`, where that made it, or the model's own. Vectors of
pictures by the two differ (`models.encoder_of`), so they never come into one index. Whether it is still the same model
is known by a stamp of its files, and by its vectors where the stamp differs.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

from mural_lite import models
from mural_lite.fingerprint import Fingerprint, take_fingerprint
from mural_lite.models import encoder_of, export_of, quickest
from mural_lite.remote_folders import model_place
from mural_lite.vectors import model_stamp
from mural_search.index import described, model_of


class KnownModel:
    """A model that is opened when it is first used; has what an `Embedder` has.

    Args:
      path: the model's folder, as `open_model` takes it.
      recorded: the model that made the index in `folder`, `None` without an index.
      folder: the index's folder.

    Attributes:
      stamp: the stamp of the model's files, "" if it is in a store.
      fingerprint: the model's fingerprint; the model is opened now unless its stamp is the index's.
    """

    def __init__(self, path: str | os.PathLike, recorded: Fingerprint | None, folder: pathlib.Path):
        self.name = path
        self.stamp = model_stamp(model_place(path))
        self._opened = None
        is_known = recorded is not None and self.stamp != "" and described(folder).get("stamp") == self.stamp
        if is_known:
            self.fingerprint = recorded
        else:
            self.fingerprint = take_fingerprint(self.opened)

    @property
    def is_open(self) -> bool:
        """Whether the model was needed."""
        return self._opened is not None

    @property
    def opened(self):
        """The model's `Embedder`."""
        if self._opened is None:
            self._opened = models.open_model(self.name)
            if "fingerprint" in self.__dict__:  # taken from the index, because of the stamp
                self.fingerprint.check(take_fingerprint(self._opened), "The index")
        return self._opened

    def __getattr__(self, name: str):
        return getattr(self.opened, name)


def known_model(model: str, folder: pathlib.Path) -> KnownModel:
    """Returns the encoders of a model that the index in a folder goes on with; for a new index the quickest.

    Raises `UserError` as `open_model`.
    """
    recorded = model_of(folder)
    path = quickest(model)
    if recorded is not None:
        for candidate in _encoders(model):
            if encoder_of(model_place(candidate)) == recorded.encoder:
                path = candidate
                break
    return KnownModel(path, recorded, folder)


def _encoders(model: str) -> Iterator[str | os.PathLike]:
    """Yields the folders of a model's encoders, the quickest first."""
    yield quickest(model)
    yield export_of(model)
    yield model
