"""The model of an index that follows its sources, opened only where something new must be embedded.

An index goes on with the encoders that made it: an export's `lite/`, where that made it, or the model's own. Vectors of
pictures by the two differ (`models.encoder_of`), so they never come into one index. Whether it is still the same model
is known by a stamp of its files, and by its vectors where the stamp differs.
"""

from __future__ import annotations

import os
import pathlib

from mural_lite import models
from mural_lite.fingerprint import Fingerprint, take_fingerprint
from mural_lite.models import encoder_of, export_of, quickest
from mural_lite.remote_folders import model_place
from mural_lite.vectors import model_stamp
from mural_search.index import described, model_of


class KnownModel:
    """A model that is opened when it is first used, with the attributes and methods of an `Embedder`.

    It is opened at once if its files have not the stamp that the index recorded, to take its fingerprint.

    Args:
      path: the model's folder, as `open_model` takes it; the attribute `name`.
      recorded: the fingerprint of the model that made the index in `folder`, `None` without an index.
      folder: the index's folder.

    Attributes:
      stamp: the stamp of the model's files, "" if it is in a store.
      fingerprint: the model's `Fingerprint`.
    """

    def __init__(self, path: str | os.PathLike, recorded: Fingerprint | None, folder: pathlib.Path):
        self.name = path
        self.stamp = model_stamp(model_place(path))
        self._opened = None
        self._has_recorded_stamp = (
            recorded is not None and self.stamp != "" and described(folder).get("stamp") == self.stamp
        )
        if self._has_recorded_stamp:
            self.fingerprint = recorded
        else:
            self.fingerprint = take_fingerprint(self.opened)

    @property
    def is_open(self) -> bool:
        """Whether the model was opened, because its fingerprint or its vectors were needed."""
        return self._opened is not None

    @property
    def opened(self):
        """The model's `Embedder`. Raises `UserError` for a model with the index's stamp and other vectors."""
        if self._opened is None:
            self._opened = models.open_model(self.name)
            if self._has_recorded_stamp:
                self.fingerprint.check(take_fingerprint(self._opened), "The index")
        return self._opened

    def __getattr__(self, name: str):
        return getattr(self.opened, name)


def known_model(model: str, folder: pathlib.Path) -> KnownModel:
    """Returns the model with the encoders that made the index in a folder, or else with its quickest encoders.

    `model`: a workdir, an export or another place, as `open_model` takes it. Raises `UserError` as `open_model`.
    """
    recorded = model_of(folder)
    fastest = quickest(model)
    if recorded is not None:
        for path in (fastest, export_of(model), model):
            if encoder_of(model_place(path)) == recorded.encoder:
                return KnownModel(path, recorded, folder)
    return KnownModel(fastest, recorded, folder)
