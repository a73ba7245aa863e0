"""The *translate-train* baseline (MURAL §4, A.4): English captions joined with their translations.

Each translation becomes a further caption of the image, in the group of the caption that it translates.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from mural_tf.config import ConfigurationError
from mural_tf.data.convert.disk_table import DiskTable, build_table
from mural_tf.data.convert.google_translations import read_translations
from mural_tf.data.convert.source import Text, find_files
from mural_tf.data.text_files import canonical_language, clean, read_lines

TABLE = "translations.sqlite"
_NO_LETTER = re.compile(r"[^\w#]|_")
_DIGITS = re.compile(r"[0-9#]+")


def translation_key(text: str) -> str:
    """Returns what a caption has in common with its tokenised form: letters in lower case, and "#" for each number.

    Google's translations are of captions that were tokenised, lower-cased and had digits replaced.
    """
    return _NO_LETTER.sub("", _DIGITS.sub("#", text.casefold()))


def build_translations(patterns: Sequence[str], languages: Sequence[str], folder: pathlib.Path) -> None:
    """Writes the table of translations into `folder`, unless it is there.

    Args:
      patterns: files. `.jsonl`, also compressed, are Google's translations; others are lines of
        `English caption<TAB>language<TAB>translation`.
      languages: target languages; empty for all.
      folder: of the conversion.

    Raises:
      ConfigurationError: an unusable line; a translation that is lost would go unnoticed otherwise.
    """
    wanted = {canonical_language(language) for language in languages}
    build_table(folder / TABLE, _rows([path for pattern in patterns for path in find_files(pattern)], wanted))


def _rows(paths: Iterable[pathlib.Path], wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        pairs = _from_google(path) if ".jsonl" in path.name else _from_tsv(path)
        for source, language, target in pairs:
            if not wanted or language in wanted:
                yield translation_key(source), f"{language}\t{target}".encode()


def _from_google(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for found, _ in read_translations(path, _refuse):
        yield found.source, found.target_language, found.target


def _from_tsv(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 3 or not all(map(clean, fields)):
            _refuse("expected English caption, language and translation with tabs between", f"{path}:{number}")
        yield clean(fields[0]), canonical_language(fields[1]), clean(fields[2])


def _refuse(kind: str, place: str) -> None:
    raise ConfigurationError(f"{place}: {kind}. Repair the file of translations or leave it out.")


class Translations:
    """Adds translations to captions."""

    def __init__(self, folder: pathlib.Path):
        self._table = DiskTable(folder / TABLE) if (folder / TABLE).exists() else None

    def add_to(self, image_id: str, texts: Sequence[Text]) -> list[Text]:
        """Returns the captions of an image, each English one followed by its translations."""
        if self._table is None:
            return list(texts)
        result: list[Text] = []
        present = {(text.language, text.text) for text in texts}
        for index, text in enumerate(texts):
            found = self._table.get(translation_key(text.text)) if text.language == "en" else []
            pairs = dict.fromkeys(tuple(value.decode().split("\t", 1)) for value in found)
            new = [pair for pair in pairs if pair not in present]
            present.update(new)
            group = text.group or (f"{image_id}:{index}" if new else "")
            result.append(text._replace(group=group))
            result += [Text(target, language, group, text.place) for language, target in new]
        return result
