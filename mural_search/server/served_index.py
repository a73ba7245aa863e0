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

EXAMPLES = 4  # examples of questions on the page
EXAMPLE_LENGTH = 16  # characters of the best example: two or three words
KEPT = 4096  # thumbnails in memory, of about 8 kB each
STRAY = " \t\r\n|.,;:·•*#_~\\/\"'`«»“”…-–—()[]{}。、،؛।"  # signs that a table leaves around a text


def examples_of(captions: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns at most `EXAMPLES` captions as examples of questions: a short caption per language, English first.

    Args:
      captions: {language: captions}.
    """
    examples = []
    for language in sorted(captions, key=lambda language: (language != "en", language)):
        texts = [text.strip(STRAY) for text in captions[language]]
        texts = [text for text in texts if text and "|" not in text]  # "Shoes|Women|Red" is a table's category
        if texts:
            examples.append(min(texts, key=lambda text: abs(len(text) - EXAMPLE_LENGTH)))
    return examples[:EXAMPLES]


def thumbnail(index: Index, row: int, side: int = SIDE) -> bytes:
    """Returns a JPEG, without metadata, of the image of a row, or of the image that a row's text describes.

    Args:
      index: the index.
      row: the number of the row.
      side: the most pixels of the longer side.

    Raises:
      IndexError: there is no such row.
      OSError, ValueError: the row has no image, or its image is gone or damaged.
    """
    return pictures.thumbnail(index.read_image(row), side)


class ServedIndex:
    """The index that a server answers from; it is opened again when its folder has changed, see `refresh`.

    Args:
      index: the opened index; its table is closed some time after a changed index is opened.
      embedder: the model that made the index.
      settings: the settings of the page.
      folder: the index's folder; "" or a folder in a store: the index is never opened again.

    Attributes:
      index: the newest index.
      embedder, settings: the arguments.
      logo: the page's logo as an address that holds it, "" without a logo.
      fields: the fields that the page shows and offers as filters.
      shop: the fields that customers know by a meaning, such as a price.
      examples: captions that the page shows as examples of questions.
      languages: the languages of the captions of pictures.
      check_pictures: raises `UserError` if the index has no vectors that can be compared with a picture's vector.
      thumbnail: returns a small JPEG of a row, as the function `thumbnail`, and keeps it in memory.

    Raises:
      UserError: the model did not make the index, a field of the settings is not there, or the logo cannot be used.
    """

    def __init__(self, index: Index, embedder, settings: PageSettings = DEFAULTS, folder: str | os.PathLike = ""):
        self.embedder = embedder
        self.settings = settings
        self.logo = settings.logo_address()
        settings.check_fields(index.table.field_names())
        # Small encoders' vectors of pictures are checked when the first picture comes, see `check_pictures`.
        self._by_pictures = getattr(embedder, "original", None) is None
        index.check_model(embedder, self._by_pictures)
        self._folder = None
        if folder and isinstance(as_path(folder), pathlib.Path):
            self._folder = pathlib.Path(folder)
        elif folder:
            announce(f"{folder} is read from its store once: start the server again when it has changed.")
        self._former_table: ItemTable | None = None
        self._hide_fields(index)
        self._use(index)

    def _hide_fields(self, index: Index) -> None:
        """Takes the fields that the settings hide out of an opened index."""
        if self.settings.hide:
            hide_fields(index.table, self.settings.hide)

    def _use(self, index: Index) -> None:
        """Sets the attributes that depend on the index, which answers from now on, and the weights of its ranking."""
        self.index = index
        index.weights = parse_weights(self.settings.weights)
        self.fields = fields.of_index(index)
        names = index.table.field_names()
        self.shop = ShopFields.of(names, index.product, self.settings.link, index.table.group_marks)
        captions = {}
        if index.kind == IMAGES:
            captions = index.table.captions(8)  # captions in each language, among which an example is chosen
        self.examples = examples_of(captions)
        self.languages = captions.keys()
        index.facets()  # counted once, before the first question
        self.check_pictures = functools.cache(functools.partial(index.check_model, self.embedder))
        self.thumbnail = functools.lru_cache(KEPT)(functools.partial(thumbnail, index))

    def refresh(self) -> None:
        """Opens the index again if its folder has changed: it was updated, or rows were removed.

        A changed index that cannot be opened, or was made by another model, is only warned of: the former index goes
        on answering. Also makes the codes that quicken the search, if the index lacks them.
        """
        if self.index.codes is None:
            quicken(self.index)
        if self._folder is None or self.index.is_current():
            return
        try:
            index = load_index(self._folder)
            index.check_model(self.embedder, self._by_pictures)
            self.settings.check_fields(index.table.field_names())  # a hidden column that was renamed would be shown
            self.index.table.release()
            index.table.merge_log()
            self._hide_fields(index)
        except UserError as error:
            logging.warning("The index has changed and cannot be served; the former one is: %s", error)
        else:
            if self._former_table is not None:
                self._former_table.close()
            self._former_table = self.index.table  # closed at the next change: other threads may still read pictures
            self._use(index)
