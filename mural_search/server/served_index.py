"""The index that a server answers from, opened again when its folder changes."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Mapping, Sequence

from absl import logging

from mural_lite import pictures
from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.progress import announce
from mural_search import fields
from mural_search.codes import quicken
from mural_search.index import Index, load_index
from mural_search.item_table import ItemTable
from mural_search.items import IMAGES
from mural_search.ranking import parse_weights
from mural_search.results import SIDE
from mural_search.server.hidden_fields import hide_fields
from mural_search.server.settings import DEFAULTS, PageSettings
from mural_search.server.shop import ShopFields

EXAMPLES = 4  # questions on the page
KEPT = 4096  # thumbnails in memory, of about 8 kB each
STRAY = " \t\r\n|.,;:·•*#_~\\/\"'`«»“”…-–—()[]{}。、،؛।"  # signs that a table leaves around a text


def examples_of(captions: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns a short caption in each of some languages, English first, without a table's stray signs."""
    examples = []
    for language in sorted(captions, key=lambda language: (language != "en", language)):
        texts = [text.strip(STRAY) for text in captions[language]]
        texts = [text for text in texts if text and "|" not in text]
        if texts:
            examples.append(min(texts, key=lambda text: abs(len(text) - 16)))  # characters: two or three words
    return examples[:EXAMPLES]


def thumbnail(index: Index, row: int, side: int = SIDE) -> bytes:
    """Returns a small JPEG of the image of a row, or of the image that a text describes, without metadata.

    Raises `IndexError` for a row that is not there, `OSError` or `ValueError` if its image is gone or damaged.
    """
    return pictures.thumbnail(index.read_image(row), side)


class ServedIndex:
    """The index in a folder, opened again when the folder holds another one: rows were removed, or it was updated.

    Args:
      index: the first state; its table is closed some time after another state is there.
      embedder: the model that made it.
      settings: the settings of the page.
      folder: the index's folder; "", or in a store: it is never opened again.

    Raises `UserError` for another model, a field that is not there, or a logo that cannot be used.
    """

    def __init__(self, index: Index, embedder, settings: PageSettings = DEFAULTS, folder: str | os.PathLike = ""):
        self.embedder = embedder
        self.settings = settings
        self.logo = settings.logo_address()
        settings.check_fields(index.table.field_names())
        self._by_pictures = getattr(embedder, "original", None) is None  # small encoders: when the first picture comes
        index.check_model(embedder, self._by_pictures)
        self._folder = None
        if folder and isinstance(as_path(folder), pathlib.Path):
            self._folder = pathlib.Path(folder)
        elif folder:
            announce(f"{folder} is read from its store once: start the server again when it has changed.")
        self._former: ItemTable | None = None
        self._hide_fields(index)
        self._use(index)

    def _hide_fields(self, index: Index) -> None:
        """Takes the fields out that the settings hide."""
        if self.settings.hide:
            hide_fields(index.table, self.settings.hide)

    def _use(self, index: Index) -> None:
        """Answers from this index from now on."""
        self.index = index
        index.weights = parse_weights(self.settings.weights)
        self.fields = fields.of_index(index)
        names = index.table.field_names()
        self.shop = ShopFields.of(names, index.product, self.settings.link, index.table.group_marks)
        captions = {}
        if index.kind == IMAGES:
            captions = index.table.captions(8)  # of each language, to choose an example from
        self.examples = examples_of(captions)
        self.languages = captions.keys()
        index.facets()  # counted once, before the first question
        self.check_pictures = functools.cache(functools.partial(index.check_model, self.embedder))
        self.thumbnail = functools.lru_cache(KEPT)(functools.partial(thumbnail, index))

    def refresh(self) -> None:
        """Opens a changed index again; keeps the former index if it cannot be opened, or is another model's."""
        if self.index.codes is None:
            quicken(self.index)
        if self._folder is None or self.index.is_current():
            return
        try:
            index = load_index(self._folder)
            index.check_model(self.embedder, self._by_pictures)
            self.settings.check_fields(index.table.field_names())  # a renamed column would be shown
            self.index.table.release()
            index.table.merge_log()
            self._hide_fields(index)
        except UserError as error:
            logging.warning("The index has changed and cannot be served; the former one is: %s", error)
        else:
            if self._former is not None:
                self._former.close()
            self._former = self.index.table  # closed at the next change: other threads may still read pictures
            self._use(index)
