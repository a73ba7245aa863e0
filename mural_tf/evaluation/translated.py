"""Translate-test ([MURAL] §3.3): captions translated into English, for a model that knows only English."""

from __future__ import annotations

import pathlib

from mural_lite.errors import UserError
from mural_lite.text_files import clean, known_language, read_lines


def read_translations(path: str | pathlib.Path) -> dict[tuple[str, str], str]:
    """Returns {(language, caption): English translation}, from a TSV in UTF-8 with these three columns.

    Captions are as in the benchmark; languages are BCP 47 tags, so "DE" and "deu" are de. Raises `UserError` for a row
    without three columns, and for an empty file.
    """
    translations = {}
    for number, line in read_lines(path):
        if not line:
            continue
        columns = line.split("\t")
        if len(columns) != 3 or not columns[2].strip():
            raise UserError(
                f"{path}:{number}: expected three columns (language, caption, translation), got {len(columns)}."
            )
        language, caption, translation = columns
        translations[_tag(language), clean(caption)] = translation
    if not translations:
        raise UserError(f"The file of translations {path} is empty.")
    return translations


def _tag(language: str) -> str:
    """Returns the BCP 47 tag of a language code, "de" for "deu"; an unknown code stays as it is."""
    return known_language(language) or language


def translate_pool(pool, path: str | pathlib.Path, max_missing: float) -> None:
    """Replaces the captions of a pool, a `retrieval.CaptionedImages`, by their translations, for an English model.

    A language without any translation leaves the pool (as MURAL's Table 3 has no Waray-Waray); a caption without a
    translation is encoded as it is. Both are noted. Raises `UserError` if more than a share of `max_missing` of a
    language's captions lacks a translation, or if there is no translation at all.
    """
    translations = read_translations(path)
    foreign_languages = [language for language in pool.texts if language != "en"]
    translated_languages = []
    for language in foreign_languages:  # a list of its own, because languages leave the pool meanwhile
        texts = pool.texts[language]
        translated_texts = [translations.get((_tag(language), clean(text))) for text in texts]
        missing = [text for text, translated in zip(texts, translated_texts) if translated is None]
        if len(missing) == len(texts):
            del pool.texts[language], pool.owners[language]
            pool.notes.append(f"{language} is left out: {path} has no translation of it.")
            continue
        if len(missing) > max_missing * len(texts):
            raise UserError(
                f"{path} lacks {len(missing)} of the {len(texts)} captions in {language}, such as {missing[0]!r}; "
                f"--protocol.max_missing={max_missing} allows fewer."
            )
        if missing:
            pool.notes.append(f"{len(missing)} captions in {language} have no translation and stay as they are.")
        pool.texts[language] = [translated or text for text, translated in zip(texts, translated_texts)]
        translated_languages.append(language)
    if not translated_languages:
        raise UserError(f"{path} translates none of the captions of {pool.where}.")
    listed = ", ".join(sorted(translated_languages))
    pool.notes.append(f"Translate-test: the captions in {listed} are translations from {path}.")
