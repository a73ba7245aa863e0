"""The same sentences in many languages: from files of aligned lines, or from image-text records.

Files: `<anything>.<language>.txt`, line i of each translates line i of the others. Records: captions that share an
image and a caption group say the same (`mural_tf/data/records.py`); an example is the emoji benchmark's names.
"""

from __future__ import annotations

import collections
import itertools
import pathlib
from collections.abc import Sequence

from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.text_files import canonical_language, read_lines
from mural_tf.data import records


def read_parallel(
    folder: str | pathlib.Path, split: str, languages: Sequence[str] = (), least_share: float = 0.5
) -> tuple[dict[str, list[str]], list[str]]:
    """Returns {language: sentences}, all lists aligned, and notes on omissions.

    Args:
      folder: the folder of the files or records above.
      split: the records' split; files have no split.
      languages: the languages to read; empty: all that have at least `least_share` of the sentences.
      least_share: 0..1.

    Raises:
      UserError: neither files nor records, files of different lengths, a language that is not there, fewer
        than two languages, or no sentence that all of them have.
    """
    files = sorted(as_path(folder).glob("*.*.txt"))
    if files:
        rows = _rows_of_files(files)
    else:
        rows = _rows_of_records(as_path(folder), split)
    counts = collections.Counter(itertools.chain.from_iterable(rows))  # {language: sentences}
    unknown = sorted(set(languages) - set(counts))
    if unknown:
        raise UserError(f"No sentences in {', '.join(unknown)}; there are {', '.join(sorted(counts))}.")
    frequent = sorted(language for language, count in counts.items() if count >= least_share * len(rows))
    chosen_languages = list(dict.fromkeys(languages)) or frequent
    if len(chosen_languages) < 2:
        raise UserError(f"Two languages or more are needed; got {', '.join(chosen_languages) or 'none'}.")
    left_out = sorted(set(counts) - set(chosen_languages))
    notes = []
    if left_out and not languages:
        notes.append(f"Left out, with less than {100 * least_share:.0f}% of the sentences: {', '.join(left_out)}.")
    common_rows = [row for row in rows if row.keys() >= set(chosen_languages)]
    if not common_rows:
        raise UserError(f"{folder} has no sentences that all languages share ({', '.join(chosen_languages)}).")
    if len(common_rows) < len(rows):
        share = f"{len(common_rows):,} of {len(rows):,}"
        notes.append(f"{share} sentences are in all {len(chosen_languages)} languages; others are left out.")
    texts = {}
    for language in chosen_languages:
        texts[language] = [row[language] for row in common_rows]
    return texts, notes


def _rows_of_files(files: Sequence[pathlib.Path]) -> list[dict[str, str]]:
    """Returns {language: sentence that is not empty} for each line; raises `UserError` for files of unequal lengths."""
    texts = {}
    for path in files:
        *_, language, _ = path.name.split(".")
        texts[canonical_language(language)] = [line or "" for _, line in read_lines(path)]
    if len({len(lines) for lines in texts.values()}) > 1:
        listed = ", ".join(f"{language} {len(lines)}" for language, lines in texts.items())
        raise UserError(f"Aligned files must have equally many lines; in {files[0].parent}: {listed}.")
    rows = []
    for lines in zip(*texts.values()):
        rows.append({language: line for language, line in zip(texts, lines) if line.strip()})
    return rows


def _rows_of_records(folder: pathlib.Path, split: str) -> list[dict[str, str]]:
    """Returns {language: the first caption} for each caption group of each image in the records of a split."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for record in records.read_records(folder, records.IMAGE_TEXT, split):
        for text, language, group in zip(record.captions, record.languages, record.caption_groups):
            if text.strip() and language:
                rows.setdefault((record.image_id, group), {}).setdefault(language, text)
    return list(rows.values())
