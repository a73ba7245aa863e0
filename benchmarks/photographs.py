"""Public photographs, drawings and captions in many languages: our models' numbers on data that anybody can fetch.

    python -m benchmarks.photographs --data=FOLDER --models=NAME=MODEL,NAME=MODEL [--only flickr8k gcompris]

FOLDER holds the clones that docs/evaluation.md lists, under the names that `git clone` gives. A model is a workdir, an
export or hf://ORG/NAME. Each data set has a table, `docs/results/photographs_<data set>.csv`: a line per model and
seed, with the commit that measured it. Lines that a table has are kept: the same command goes on where it stopped.
Published lines, of Babel-ImageNet, have no commit.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import subprocess

import mural_tf
from benchmarks.results import RESULTS, ROOT, read_rows, write_rows
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_tf.evaluation.babel_imagenet import GROUP as MANY_CLASSES
from mural_tf.evaluation.benchmarks import run_benchmark
from mural_tf.evaluation.gcompris import GROUP as MANY_WORDS
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation
from mural_tf.metrics.ranking import CUTOFFS

TEXT_TO_IMAGE = {f"R@{k}, text to image": f"text_to_image/recall@{k}" for k in CUTOFFS}
BOTH_WAYS = {**TEXT_TO_IMAGE, **{f"R@{k}, image to text": f"image_to_text/recall@{k}" for k in CUTOFFS}}
TEXT_TO_TEXT = {"R@1 to others": "to_others/recall@1", "mean recall": "mean_recall"}
FLICKR8K_IMAGES = "sic_translator/data/images"


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A benchmark that has a table of its own.

    name: the benchmark's name.
    folder: the folder of the benchmark's files, below FOLDER.
    metrics: {title of a column: metric}.
    group: the languages whose mean comes first.
    split: the splits to measure; "": the benchmark's default.
    images: the folder of the photographs, below FOLDER, where only a part of them is there.
    """

    name: str
    folder: str
    metrics: dict[str, str]
    group: str = "all"
    split: str = ""
    images: str = ""

    def cells(self, evaluation: Evaluation) -> dict[str, str]:
        """Returns {title of a column: number as text}: the means over the group, then each language's numbers."""
        members = evaluation.groups.get(self.group, tuple(evaluation.sizes))
        cells = {}
        for title, metric in self.metrics.items():
            values = [evaluation.metrics[f"{self.name}/{language}/{metric}"] for language in members]
            cells[f"mean of {len(members)}, {title}"] = f"{sum(values) / len(values):.2f}"
        for language in evaluation.sizes:
            for title, metric in self.metrics.items():
                cells[f"{language}, {title}"] = f"{evaluation.metrics[f'{self.name}/{language}/{metric}']:.2f}"
        return cells


DATA_SETS = (
    DataSet("flickr8k", "", BOTH_WAYS, images=FLICKR8K_IMAGES),
    DataSet("multi30k", "dataset", BOTH_WAYS, split="train,val,test_2016_flickr", images=FLICKR8K_IMAGES),
    DataSet("babel_imagenet", "", {"accuracy@1": "accuracy@1"}, MANY_CLASSES),
    DataSet("gcompris", "", TEXT_TO_IMAGE, MANY_WORDS),
    DataSet("xtd_texts", "Cross-lingual-Test-Dataset-XTD10", TEXT_TO_TEXT),
)


def measure(data_set: DataSet, embedder: Embedder, folder: pathlib.Path) -> Evaluation:
    """Returns a model's evaluation on a data set: on the photographs that are there, in Multi30K with one caption each.

    `folder` is the folder of the data sets' clones.
    """
    protocol = default_protocol()
    if data_set.name == "multi30k":
        protocol.multi30k.captions = "one"
    if data_set.images:
        protocol.images = str(folder / data_set.images)
        protocol.subset = True
    request = Request(embedder, folder / data_set.folder, data_set.split, protocol, progress=True)
    (evaluation,) = run_benchmark(data_set.name, request)
    return evaluation


def published_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Returns a line of the table for each published model, {column: cell}: its mean and its languages' numbers."""
    lines: dict[str, dict[str, str]] = {}
    for language, numbers in evaluation.published.items():
        title = language
        if language == MANY_CLASSES:  # the mean of a group, not a language
            title = f"mean of {len(evaluation.groups[MANY_CLASSES])}"
        for model, number in numbers.items():
            line = lines.setdefault(model, {"model": f"{model} (published)", "seed": "", "commit": ""})
            line[f"{title}, accuracy@1"] = f"{number:.2f}"
    return list(lines.values())


def commit() -> str:
    """Returns the commit of the working tree, eight hexadecimal digits, and "+" if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=8", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _named_models(entries: list[str]) -> list[tuple[str, str]]:
    """Returns (name, path) of each "NAME=MODEL"; raises `UserError` for another text, or for no texts."""
    named_models = []
    for entry in entries:
        name, _, path = entry.partition("=")
        named_models.append((name, path))
    if not named_models or not all(name and path for name, path in named_models):
        raise UserError(f"--models={','.join(entries)}: expected NAME=MODEL, such as emoji=workdirs/emoji.")
    return named_models


def measure_models(models: list[str], data: pathlib.Path, output: pathlib.Path, only: list[str]) -> None:
    """Measures models on data sets, and adds the lines that the tables lack, which it also prints.

    Args:
      models: "NAME=MODEL" of each model.
      data: the folder of the data sets' clones.
      output: the folder of the tables.
      only: the names of the data sets.

    Raises:
      UserError: a text of `models` has another form, or a model or a data set cannot be used.
    """
    named_models = _named_models(models)
    revision = commit()
    output.mkdir(parents=True, exist_ok=True)  # before the minutes of the first table
    for name, path in named_models:
        embedder = mural_tf.load(path)
        seed = str(getattr(embedder.config, "seed", ""))
        for data_set in DATA_SETS:
            table = output / f"photographs_{data_set.name}.csv"
            rows = read_rows(table)
            measured = {(row["model"], row["seed"]) for row in rows}
            if data_set.name not in only or (name, seed) in measured:
                continue
            evaluation = measure(data_set, embedder, data)
            print(evaluation.protocol, *evaluation.notes, sep="\n")
            line = {"model": name, "seed": seed, "commit": revision, **data_set.cells(evaluation)}
            print(line)
            ours = [row for row in rows if row["commit"]]
            published = [row for row in rows if not row["commit"]]
            if not published:  # a new table
                published = published_rows(evaluation)
            write_rows(table, [*ours, line, *published])


def main() -> None:
    """Measures the models and data sets that the command line names."""
    names = [data_set.name for data_set in DATA_SETS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the clones")
    parser.add_argument("--models", type=lambda text: text.split(","), required=True, help="NAME=MODEL,…")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these data sets")
    arguments = parser.parse_args()
    try:
        measure_models(arguments.models, arguments.data, arguments.output, arguments.only)
    except UserError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
