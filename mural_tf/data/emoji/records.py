"""Which emoji, languages and splits the records of the emoji benchmark hold (see `emoji.py` for the whole).

Every choice is by the SHA-256 of a text, so that it depends on nothing but that text, and never on the order of
files, the platform or a random generator's version.
"""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Sequence

from mural_tf.data.emoji.drawings import DrawingStyle
from mural_tf.data.emoji.names import LANGUAGE_GROUPS, WELL_RESOURCED, EmojiName
from mural_tf.data.records import ImageTextRecord, TextPair

TEST_IMAGES = 1000  # the pool size of Flickr30K and XTD
CAPTION_SHARE = 0.03  # of the emoji, in languages that are not well-resourced

Names = dict[str, dict[str, EmojiName]]  # language -> emoji key -> name


def split_test(emoji: set[str]) -> tuple[set[str], set[str]]:
    """Returns (test, dev): the `TEST_IMAGES` emoji of smallest hash, whatever the build's seed, and the others."""
    ranked = sorted(emoji, key=lambda key: _hash("test", key))
    return set(ranked[:TEST_IMAGES]), set(ranked[TEST_IMAGES:])


def captioned_in_training(names: Names, seed: int) -> Names:
    """Returns the names that are training captions: all in well-resourced languages, 3% (at least 1) in others.

    Each language draws its own 3% of the emoji that it names; the draw does not depend on the other languages.
    """
    chosen = {}
    for language, of_language in names.items():
        keys = sorted(of_language, key=lambda key: _hash("caption", seed, language, key))
        if language not in WELL_RESOURCED:
            keys = keys[: max(1, round(CAPTION_SHARE * len(keys)))]
        chosen[language] = {key: of_language[key] for key in keys}
    return chosen


def restricted(names: Names, emoji: set[str]) -> Names:
    """Returns the names of `emoji` only."""
    return {language: {k: v for k, v in of_language.items() if k in emoji} for language, of_language in names.items()}


def image_text_records(
    drawings: dict[str, dict[str, bytes]],
    styles: Sequence[DrawingStyle],
    captions: Names,
    seed: int,
    keyword_captions: bool = False,
) -> list[ImageTextRecord]:
    """Returns one record per captioned emoji and style, in an order drawn from the seed.

    `image_id` is "<style>/<emoji>", the caption groups "<emoji>:name" and, on request, "<emoji>:keywords".
    """
    by_emoji: dict[str, list[tuple[str, str, str]]] = collections.defaultdict(list)
    for language, of_language in captions.items():
        for key, entry in of_language.items():
            by_emoji[key].append((entry.name, language, f"{key}:name"))
            keywords = ", ".join(entry.keywords)
            if keyword_captions and keywords not in ("", entry.name):
                by_emoji[key].append((keywords, language, f"{key}:keywords"))
    records = [
        ImageTextRecord(f"{style.name}/{key}", drawings[style.name][key], *zip(*triples))
        for style in styles
        for key, triples in by_emoji.items()
    ]
    return sorted(records, key=lambda record: _hash("order", seed, record.image_id))


def text_pairs(names: Names, locale_names: dict[str, dict[str, str]], seed: int) -> list[TextPair]:
    """Returns English with every other language, in an order drawn from the seed.

    All emoji names (group "<emoji>:name"), and the locale names that differ from English (group "languages:de"):
    one that does not was left untranslated.
    """
    pairs = []
    for language, of_language in names.items():
        if language == "en":
            continue
        for key, entry in of_language.items():
            pairs.append(TextPair(names["en"][key].name, "en", entry.name, language, f"{key}:name"))
        for code, name in locale_names[language].items():
            english = locale_names["en"].get(code)
            if english is not None and english != name:
                pairs.append(TextPair(english, "en", name, language, code))
    return sorted(pairs, key=lambda pair: _hash("order", seed, pair.language_b, pair.group_id))


def describe(
    languages: Sequence[str], image_text: dict[str, list[ImageTextRecord]], pairs: list[TextPair]
) -> dict[str, object]:
    """Returns the counts for `dataset.json`: in total, and per language and split.

    A language's `images` are those with a caption in it: in dev and test, the queries of its evaluation.
    """
    per_language = {
        language: {"image_text": {split: {"images": 0, "captions": 0} for split in image_text}, "text_pairs": {}}
        for language in languages
    }
    totals: dict[str, dict] = {"image_text": {}, "text_pairs": {"train": len(pairs)}}
    for split, records in image_text.items():
        captions = collections.Counter(language for record in records for language in record.languages)
        images = collections.Counter(language for record in records for language in set(record.languages))
        totals["image_text"][split] = {"images": len(records), "captions": sum(captions.values())}
        for language in languages:
            counts = {"images": images[language], "captions": captions[language]}
            per_language[language]["image_text"][split] = counts
    in_pairs = collections.Counter(pair.language_b for pair in pairs)
    for language in languages:
        per_language[language]["text_pairs"] = {"train": len(pairs) if language == "en" else in_pairs[language]}
    groups = {name: list(members) for name, members in LANGUAGE_GROUPS.items()}
    return {"counts": totals, "languages": per_language, "language_groups": groups}


def _hash(*parts: object) -> bytes:
    return hashlib.sha256("\t".join(map(str, parts)).encode("utf-8")).digest()
