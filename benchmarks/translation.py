"""What a trained model does on the emoji benchmark besides image-text retrieval in one language.

    python -m benchmarks.translation WORKDIR data/emoji_core translation.json

Translation, per head of the text tower ("default": the head that embeds everywhere else; MURAL's "text_text") and
language but English: the mean recall (R@1, 5, 10, both directions) between the test split's captions in it and their
English captions, one caption per image, pool: the images captioned in both; "default_held_out": with held-out names
alone as queries. "mixed_pool": the names that images find among the names in all languages ([MURAL] A.5). "styles": the
mean recall between the test's drawings and the same emoji in the first training style ([MURAL] Table 5).
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Collection

from mural_lite.errors import UserError
from mural_lite.files import write_whole

PIVOT = "en"


def translation_recall(embedder, data_dir: str, split: str, asked: Collection[str] | None = None) -> dict[str, float]:
    """Returns {language: mean recall in percent}; raises `UserError` if no language has a pair.

    `asked`: ids of the images whose captions are queries, the others being candidates only; None: all.
    """
    import numpy as np

    from mural_tf.data import records
    from mural_tf.evaluation.retrieval import encode_captions
    from mural_tf.metrics import ranking

    captions: dict[str, dict[str, str]] = {}
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        for text, language in zip(record.captions, record.languages):
            captions.setdefault(language, {}).setdefault(record.image_id, text)
    pivots = captions.pop(PIVOT, {})
    position_of = {image: position for position, image in enumerate(pivots)}

    results, pivot_embeddings = {}, None
    for language, texts in sorted(captions.items()):
        shared = [image for image in texts if image in position_of]
        own = np.array([position for position, image in enumerate(shared) if asked is None or image in asked], int)
        if not own.size:
            continue
        if pivot_embeddings is None:
            pivot_embeddings = encode_captions(embedder, list(pivots.values()), PIVOT)
        sides = [
            encode_captions(embedder, [texts[image] for image in shared], language),
            pivot_embeddings[[position_of[image] for image in shared]],
        ]
        both = [ranking.ranks(queries[own], pool, own) for queries, pool in (sides, sides[::-1])]
        summary = ranking.summarize(*both)
        results[language] = float(summary["mean_recall"])
    if not results:
        raise UserError(f"Split {split!r} of {data_dir} has no captions in {PIVOT!r} and another language.")
    return results


def mixed_pool(embedder, data_dir: str) -> dict[str, float]:
    """Returns, in percent, how many of the first five names of an image are English, and how many its own."""
    from mural_tf.evaluation.protocol import default_protocol
    from mural_tf.evaluation.request import Request
    from mural_tf.evaluation.retrieval import MIXED

    protocol = default_protocol()
    protocol.mixed_pool = True
    metrics = Request(embedder, pathlib.Path(data_dir), "test", protocol).measure_records("emoji")[0].metrics
    names = {"english_share": f"{PIVOT}/mixed_pool/share", "precision": "all/mixed_pool/precision"}
    return {name: metrics[f"emoji/{key}@{MIXED}"] for name, key in names.items()}


def recall_between_styles(embedder, data_dir: str) -> float:
    """Returns the mean recall, in percent, between the test's drawings and the drawings of the first training style."""
    import numpy as np

    from mural_tf.data import records
    from mural_tf.demo.emoji import TRAINING_STYLES
    from mural_tf.metrics import ranking

    drawings: dict[str, dict[str, bytes]] = {"train": {}, "test": {}}
    for split, by_key in drawings.items():
        for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
            style, key = record.image_id.split("/")
            if split == "test" or style == TRAINING_STYLES[0].name:
                by_key[key] = record.image
    shared = sorted(drawings["train"].keys() & drawings["test"].keys())
    sides = [embedder.encode_image([by_key[key] for key in shared], progress=False) for by_key in drawings.values()]
    own = np.arange(len(shared))
    return float(ranking.summarize(ranking.ranks(*sides, own), ranking.ranks(*sides[::-1], own))["mean_recall"])


def write_in_english(data_dir: str, path: pathlib.Path) -> None:
    """Writes the test split's captions, each with an English translation: language, caption, translation.

    A word becomes the likeliest one of the dictionary that the data's text pairs hold, others stay; see `word_by_word`.
    """
    from benchmarks.word_by_word import learn_dictionary, words_of
    from mural_tf.data import records

    pairs: dict[str, list[tuple[str, str]]] = {}
    for pair in records.read_records(data_dir, records.TEXT_PAIRS, "train"):
        sides = (pair.text_a, pair.language_a), (pair.text_b, pair.language_b)
        for (text, language), (other, other_language) in (sides, sides[::-1]):
            if language == PIVOT != other_language:
                pairs.setdefault(other_language, []).append((other, text))
    dictionaries = {language: learn_dictionary(texts) for language, texts in pairs.items()}

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
    from mural_lite.config_file import load_config
    from mural_lite.models import open_model
    from mural_tf.evaluation.retrieval import held_out_images

    workdir, data_dir, output = sys.argv[1:]
    embedder = open_model(workdir, made_states=True)  # as the evaluation at the end of a run does
    heads = {"default": embedder}
    if "text_text" in embedder.text_heads:
        heads["text_text"] = embedder.with_text_head("text_text")
    results = {name: translation_recall(head, data_dir, "test") for name, head in heads.items()}
    if held_out := held_out_images(data_dir):
        for name, head in heads.items():
            results[f"{name}_held_out"] = translation_recall(head, data_dir, "test", held_out)
    if load_config(pathlib.Path(workdir) / "config.json").image_tower.name not in ("none", "features"):
        results["mixed_pool"] = mixed_pool(embedder, data_dir)
        results["styles"] = recall_between_styles(embedder, data_dir)
    pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
