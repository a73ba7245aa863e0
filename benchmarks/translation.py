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


def translation_recall(embedder, data_dir: str, split: str, queried: Collection[str] | None = None) -> dict[str, float]:
    """Returns {language: mean recall in percent} between a split's captions in a language and in English.

    Only an image's first caption in a language counts. Languages without a query are left out.

    Args:
      embedder: the model, or one of its heads.
      data_dir: the data folder.
      split: the split's name.
      queried: ids of the images whose captions are queries; captions of other images are only candidates. `None`: all.

    Raises:
      UserError: no image has a caption in English and in another language.
    """
    import numpy as np

    from mural_tf.evaluation.retrieval import encode_captions
    from mural_tf.metrics import ranking

    captions = first_captions(data_dir, split)
    pivots = captions.pop(PIVOT, {})
    pivot_rows = {image: row for row, image in enumerate(pivots)}
    results = {}
    pivot_embeddings = None  # [N, D], of all pivots; computed only if it is compared
    for language, texts in sorted(captions.items()):
        shared = [image for image in texts if image in pivot_rows]
        queries = [row for row, image in enumerate(shared) if queried is None or image in queried]
        if not queries:
            continue
        if pivot_embeddings is None:
            pivot_embeddings = encode_captions(embedder, list(pivots.values()), PIVOT)
        right_rows = np.array(queries, int)  # [Q], rows of the queries and of their right answers
        in_language = encode_captions(embedder, [texts[image] for image in shared], language)  # [S, D]
        in_pivot = pivot_embeddings[[pivot_rows[image] for image in shared]]  # [S, D]
        to_pivot = ranking.ranks(in_language[right_rows], in_pivot, right_rows)  # [Q]
        to_language = ranking.ranks(in_pivot[right_rows], in_language, right_rows)
        results[language] = float(ranking.summarize(to_pivot, to_language)["mean_recall"])
    if not results:
        raise UserError(f"Split {split!r} of {data_dir} has no captions in {PIVOT!r} and another language.")
    return results


def first_captions(data_dir: str, split: str) -> dict[str, dict[str, str]]:
    """Returns {language: {image id: its first caption in the language}} of a split."""
    from mural_tf.data import records

    captions: dict[str, dict[str, str]] = {}
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        for text, language in zip(record.captions, record.languages):
            captions.setdefault(language, {}).setdefault(record.image_id, text)
    return captions


def mixed_pool(embedder, data_dir: str) -> dict[str, float]:
    """Returns {"english_share": percent, "precision": percent} of the five names nearest to an image.

    The names are in all languages. The percentages are the English names and the image's own names among the five.
    """
    from mural_tf.evaluation.protocol import default_protocol
    from mural_tf.evaluation.request import Request
    from mural_tf.evaluation.retrieval import MIXED

    protocol = default_protocol()
    protocol.mixed_pool = True
    request = Request(embedder, pathlib.Path(data_dir), "test", protocol)
    (evaluation,) = request.measure_records("emoji")
    names = {"english_share": f"{PIVOT}/mixed_pool/share", "precision": "all/mixed_pool/precision"}
    return {name: evaluation.metrics[f"emoji/{metric}@{MIXED}"] for name, metric in names.items()}


def recall_between_styles(embedder, data_dir: str) -> float:
    """Returns the mean recall, in percent, between the test's drawings and the drawings of the first training style."""
    import numpy as np

    from mural_tf.data import records
    from mural_tf.demo.emoji import TRAINING_STYLES
    from mural_tf.metrics import ranking

    first_style = TRAINING_STYLES[0].name
    drawings: dict[str, dict[str, bytes]] = {"train": {}, "test": {}}  # {split: {emoji: drawing}}
    for split, split_drawings in drawings.items():
        for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
            style, key = record.image_id.split("/")
            if split == "test" or style == first_style:
                split_drawings[key] = record.image
    shared = sorted(drawings["train"].keys() & drawings["test"].keys())
    train = embedder.encode_image([drawings["train"][key] for key in shared], progress=False)
    test = embedder.encode_image([drawings["test"][key] for key in shared], progress=False)
    right_rows = np.arange(len(shared))
    to_test = ranking.ranks(train, test, right_rows)
    to_train = ranking.ranks(test, train, right_rows)
    return float(ranking.summarize(to_test, to_train)["mean_recall"])


def write_in_english(data_dir: str, path: pathlib.Path) -> None:
    """Writes (language, caption, English translation), with tabs between them, for each caption of the test split.

    A word becomes its likeliest translation by a dictionary of the data's text pairs, see `benchmarks.word_by_word`;
    words that it lacks stay.
    """
    from benchmarks.word_by_word import learn_dictionary, oriented_pairs, words_of
    from mural_tf.data import records

    pairs: dict[str, list[tuple[str, str]]] = {}  # {language: [(its text, the pivot's text)]}
    train_pairs = records.read_records(data_dir, records.TEXT_PAIRS, "train")
    for pivot_text, _, language, text in oriented_pairs(train_pairs, PIVOT):
        pairs.setdefault(language, []).append((text, pivot_text))
    dictionaries = {language: learn_dictionary(texts) for language, texts in pairs.items()}

    def translated(text: str, language: str) -> str:
        """Returns a text in English, or the text itself if it has no words."""
        dictionary = dictionaries[language]
        english = []
        for word in words_of(text):
            if word in dictionary:
                translations, _ = dictionary[word]
                english.append(translations[0])  # the likeliest
            else:
                english.append(word)
        return " ".join(english) or text

    lines: dict[str, None] = {}  # in order, each once, because images share captions
    for record in records.read_records(data_dir, records.IMAGE_TEXT, "test"):
        for text, language in zip(record.captions, record.languages):
            if language != PIVOT:
                lines[f"{language}\t{text}\t{translated(text, language)}\n"] = None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines))


def main() -> None:
    """Measures the model that the command line names, and writes the results as JSON."""
    from mural_lite.config_file import load_config
    from mural_lite.models import open_model
    from mural_tf.evaluation.retrieval import held_out_images

    workdir, data_dir, output = sys.argv[1:]
    embedder = open_model(workdir, made_states=True)  # as the evaluation at the end of a run does
    heads = {"default": embedder}
    if "text_text" in embedder.text_heads:
        heads["text_text"] = embedder.with_text_head("text_text")
    results = {name: translation_recall(head, data_dir, "test") for name, head in heads.items()}
    held_out = held_out_images(data_dir)
    if held_out:
        for name, head in heads.items():
            results[f"{name}_held_out"] = translation_recall(head, data_dir, "test", held_out)
    if load_config(pathlib.Path(workdir) / "config.json").image_tower.name not in ("none", "features"):
        results["mixed_pool"] = mixed_pool(embedder, data_dir)
        results["styles"] = recall_between_styles(embedder, data_dir)
    pathlib.Path(output).parent.mkdir(parents=True, exist_ok=True)
    write_whole(output, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
