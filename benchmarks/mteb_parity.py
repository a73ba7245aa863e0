"""mteb's scores of one folder of Sentence-Transformers: loaded here, and by Sentence-Transformers itself.

    pip install -e '.[mteb]' sentence-transformers
    python -m benchmarks.mteb_parity --model=FOLDER --texts=FOLDER/dataset --output=mteb_parity.csv

Two tasks of Multi30K's 1,000 German and English sentences of 2016 (docs/evaluation.md has the address): bitext mining,
without prompts, and retrieval of the English sentence by the German one, with the folder's prompts of queries and
documents.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import pathlib

import mteb
from datasets import Dataset
from mteb.abstasks import AbsTaskBitextMining
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

from mural_tf.evaluation.mteb import MtebEncoder

SCORES = ("f1", "accuracy", "ndcg_at_10", "recall_at_1")


def metadata(name: str, task_type: str, score: str, languages) -> TaskMetadata:
    """Returns the description of a task, in which facts that only mteb's pages show are "-" or `None`.

    Args:
      name: the task's name.
      task_type: mteb's type of task, "Retrieval" say.
      score: the name of the main score.
      languages: mteb's codes of the languages, a list, or {name of a pair: list}.
    """
    return TaskMetadata(
        name=name, description="-", dataset={"path": "local", "revision": "1"}, type=task_type, category="t2t",
        modalities=["text"], eval_splits=["test"], eval_langs=languages, main_score=score, reference=None, date=None,
        domains=None, task_subtypes=None, license=None, annotations_creators=None, dialect=None, sample_creation=None,
        bibtex_citation=None,
    )  # fmt: skip


class Bitext(AbsTaskBitextMining):
    """Mining: which English sentence translates a German one; sentences with the same index are a pair."""

    metadata = metadata("Multi30KBitext", "BitextMining", "f1", {"de-en": ["deu-Latn", "eng-Latn"]})

    def __init__(self, german: list[str], english: list[str]):
        super().__init__()
        self.dataset = {"de-en": {"test": Dataset.from_dict({"sentence1": german, "sentence2": english})}}
        self.data_loaded = True

    def load_data(self, **options) -> None:
        """The sentences are there."""


class Retrieval(AbsTaskRetrieval):
    """Retrieval of English sentences by German sentences; sentences with the same index are a pair."""

    metadata = metadata("Multi30KRetrieval", "Retrieval", "ndcg_at_10", ["deu-Latn", "eng-Latn"])

    def __init__(self, german: list[str], english: list[str]):
        super().__init__()
        ids = [str(number) for number in range(len(english))]
        split = RetrievalSplitData(
            queries=Dataset.from_dict({"id": ids, "text": german}),
            corpus=Dataset.from_dict({"id": ids, "title": [""] * len(ids), "text": english}),
            relevant_docs={sentence_id: {sentence_id: 1} for sentence_id in ids},
            top_ranked=None,
        )
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True

    def load_data(self, **options) -> None:
        """The sentences are there."""


def read_lines(texts: pathlib.Path, language: str) -> list[str]:
    """Returns the 1,000 sentences of Multi30K's test of 2016 in a language; `texts` is the clone's folder."""
    with gzip.open(texts / f"data/task1/raw/test_2016_flickr.{language}.gz", "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def main() -> None:
    """Evaluates both encoders on both tasks, and prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="folder of Sentence-Transformers")
    parser.add_argument("--texts", type=pathlib.Path, required=True, help="clone of multi30k/dataset")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a .csv file")
    arguments = parser.parse_args()
    encoders = {"here": MtebEncoder(arguments.model)}
    encoders["Sentence-Transformers"] = SentenceTransformerEncoderWrapper(arguments.model)
    german = read_lines(arguments.texts, "de")
    english = read_lines(arguments.texts, "en")
    rows = [["task", "score", *encoders]]
    for task in (Bitext(german, english), Retrieval(german, english)):
        scores = []
        for encoder in encoders.values():
            result = mteb.evaluate(encoder, task, cache=None, show_progress_bar=False)
            scores.append(result.task_results[0].scores["test"][0])
        for name in SCORES:
            if name in scores[0]:
                rows.append([task.metadata.name, name, *(f"{100 * score[name]:.3f}" for score in scores)])
    with arguments.output.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print("\n".join("  ".join(row) for row in rows))


if __name__ == "__main__":
    main()
