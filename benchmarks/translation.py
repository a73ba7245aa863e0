"""Translation retrieval with a trained model: the captions of one image in two languages find each other.

    python -m benchmarks.translation WORKDIR data/emoji_core translation.json

Per head of the text tower ("default": the one that embeds everywhere else; MURAL's "text_text") and language but
English: the mean recall (R@1, 5, 10, both directions) between the test split's captions in it and their English ones,
one caption an image, pool: the images captioned in both.
"""

from __future__ import annotations

import json
import pathlib
import sys

from mural_tf.errors import UserError
from mural_tf.files import write_whole

PIVOT = "en"


def translation_recall(embedder, data_dir: str, split: str) -> dict[str, float]:
    """Returns {language: mean recall in percent}; raises `UserError` if no language has a pair."""
    import numpy as np

    from mural_tf.data import records
    from mural_tf.evaluation.retrieval import encode_captions
    from mural_tf.metrics import ranking

    captions: dict[str, dict[str, str]] = {}
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        for text, language in zip(record.captions, record.languages):
            captions.setdefault(language, {}).setdefault(record.image_id, text)
    pivots = captions.pop(PIVOT, {})
    places = {image: place for place, image in enumerate(pivots)}

    results, pivot_embeddings = {}, None
    for language, texts in sorted(captions.items()):
        shared = [image for image in texts if image in places]
        if not shared:
            continue
        if pivot_embeddings is None:
            pivot_embeddings = encode_captions(embedder, list(pivots.values()), PIVOT)
        sides = [
            encode_captions(embedder, [texts[image] for image in shared], language),
            pivot_embeddings[[places[image] for image in shared]],
        ]
        own = np.arange(len(shared))
        summary = ranking.summarize(ranking.ranks(*sides, own), ranking.ranks(*reversed(sides), own))
        results[language] = float(summary["mean_recall"])
    if not results:
        raise UserError(f"Split {split!r} of {data_dir} has no captions in {PIVOT!r} and another language.")
    return results


def write_in_english(data_dir: str, path: pathlib.Path) -> None:
    """Writes the test split's captions, each with an English translation: language, caption, translation.

    A word becomes the likeliest one of the dictionary that the data's text pairs hold, others stay; see `word_by_word`.
    """
    from mural_tf.data import records
    from mural_tf.ingest.word_by_word import learn_dictionary, words_of

    pairs: dict[str, list[tuple[str, str]]] = {}
    for pair in records.read_records(data_dir, records.TEXT_PAIRS, "train"):
        sides = (pair.text_a, pair.language_a), (pair.text_b, pair.language_b)
        for (text, language), (other, other_language) in (sides, sides[::-1]):
            if language == PIVOT != other_language:
                pairs.setdefault(other_language, []).append((other, text))
    dictionaries = {language: learn_dictionary(found) for language, found in pairs.items()}

    def translated(text: str, language: str) -> str:
        dictionary = dictionaries[language]
        return " ".join(dictionary[word][0][0] if word in dictionary else word for word in words_of(text)) or text

    lines = {
        f"{language}\t{text}\t{translated(text, language)}\n": None
        for record in records.read_records(data_dir, records.IMAGE_TEXT, "test")
        for text, language in zip(record.captions, record.languages)
        if language != PIVOT
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines))


def main() -> None:
    from mural_tf.loading import load

    workdir, data_dir, output = sys.argv[1:]
    embedder = load(workdir)
    heads = {"default": embedder}
    if "text_text" in embedder.text_heads:
        heads["text_text"] = embedder.with_text_head("text_text")
    results = {name: translation_recall(head, data_dir, "test") for name, head in heads.items()}
    pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
