"""Where captions are many, few or missing: ALIGN, MURAL and further stages, on photographs with human captions.

    git clone …/sic_translator …/dataset …/Arabic-Image-Captioning     # docs/evaluation.md has the addresses
    python -m benchmarks.photograph_folds --data=FOLDER --output=results/folds

Flickr8k's 1,000 photographs in five folds: 800 for training, 200 for the test; all texts of a photograph stay on one
side. Captions: five in English; in German, French and Czech Multi30K's one, for none of the photographs, 3% of them,
or all; none in Arabic, which only the test has. Translation pairs: Multi30K's 29,000 English sentences with their
German, French and Czech translations, but for the test's photographs. Image tower: EfficientNet-Lite0 of ImageNet,
frozen. Text tower: multilingual-e5-small, frozen, or a BERT of two layers that begins from nothing.

Written: folds.csv, a line for each method, fold and seed ("3.0") with the mean recall (R@1, 5 and 10, both directions)
of each language among the fold's 200 photographs. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import pathlib
import re
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Iterator

from ml_collections import ConfigDict

from benchmarks.results import add_row, read_rows
from mural_lite.errors import UserError
from mural_lite.record_format import IMAGE_TEXT, TEXT_PAIRS, ImageTextRecord, TextPair
from mural_tf.data import caption_files

PHOTOGRAPHS = "sic_translator/data/images"
ENGLISH = "sic_translator/data/captions.txt"
ARABIC = "Arabic-Image-Captioning/data/Flickr8k_text/Flickr8k.arabic.full.txt"
FOLD_COUNT = 5
OTHERS = ("de", "fr", "cs")
SHARES = {"none": 0.0, "all": 1.0, "few": 0.03}  # of the photographs, with captions in the other languages
CAPTIONED = {"none": "no captions in the three", "few": "captions for 3%", "all": "captions for all"}
TOWER_NAMES = {"e5": "", "bert": ", BERT from nothing"}
COLUMNS = {  # language → title
    "en": "English",
    "three": "German, French, Czech",
    "de": "German",
    "fr": "French",
    "cs": "Czech",
    "ar": "Arabic",
}
MULTI30K_PARTS = ("train", "val", "test_2016_flickr")
MURALS = {"loss.text_text_weight": 0.1}  # [MURAL] §3.2
PAPERS = {**MURALS, "method.text_text_temperature": 0.01, "method.text_text_margin": 0.3}  # and §3.1
STAGE_STEPS = 600


@dataclasses.dataclass(frozen=True)
class Row:
    """A method with its fields, which makes a row of the table for each of its shares of captions.

    Attributes:
      name: the row's name in the table.
      method: the name of the method, or "translated" for the stage of translations.
      fields: {field of the configuration: value}.
      after: the name of the row whose model it starts from, "" for a row that starts from the towers.
      shares: the names of `SHARES` with which it is trained.
    """

    name: str
    method: str
    fields: dict = dataclasses.field(default_factory=dict)
    after: str = ""
    shares: tuple[str, ...] = tuple(SHARES)


ROWS = (
    Row("ALIGN", "align"),
    Row("MURAL, weight 1", "mural", {"loss.text_text_weight": 1.0}),
    Row("MURAL, weight 0.1", "mural", MURALS),
    Row("MURAL, weight, temperature and margin of the paper", "mural", PAPERS),
    Row("ALIGN, then the stage", "translated", after="ALIGN"),
    Row("MURAL, weight 0.1, then the stage", "translated", after="MURAL, weight 0.1"),
    Row("MURAL, weight 0.1, then ETCL", "etcl", after="MURAL, weight 0.1", shares=("few", "all")),
)


@dataclasses.dataclass(frozen=True)
class Photograph:
    """A picture and its human captions."""

    number: str  # Flickr's
    picture: bytes  # a JPEG file
    english: tuple[str, ...]  # captions
    sentences: dict[str, str]  # {language: Multi30K's sentence}, in English, too; or {}
    arabic: tuple[str, ...]  # captions


def read_photographs(data: pathlib.Path) -> list[Photograph]:
    """Returns the photographs that have English captions, in the order of their files, and prints the others.

    Args:
      data: the folder of the clones.

    Raises:
      UserError: a file is missing, or no photograph has an English caption.
    """
    english = _captions_by_number(caption_files.read_flickr8k(_existing(data / ENGLISH), "en", _report))
    arabic = _captions_by_number(caption_files.read_flickr8k(_existing(data / ARABIC), "ar", _report))
    sentences = read_sentences(data)
    photographs = []
    for path in sorted((data / PHOTOGRAPHS).glob("*.jpg")):
        number = _number(path.name)
        if number not in english:
            _report("photograph without an English caption", str(path))
            continue
        photograph = Photograph(
            number,
            path.read_bytes(),
            english=tuple(english[number]),
            sentences=sentences.get(number, {}),
            arabic=tuple(arabic.get(number, ())),
        )
        photographs.append(photograph)
    if not photographs:
        raise UserError(f"{data / PHOTOGRAPHS} has no photograph with a caption: clone the repositories again.")
    return photographs


def read_sentences(data: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns {Flickr's number: {language: sentence}} of Multi30K's photographs that have sentences in all languages.

    `data` is the folder of the clones. Raises `UserError` for a missing file.
    """
    folder = _existing(data / "dataset")
    sentences: dict[str, dict[str, str]] = {}
    languages = ("en", *OTHERS)
    for part, language in itertools.product(MULTI30K_PARTS, languages):
        for caption in caption_files.read_multi30k(folder, part, language, task=1, on_problem=_report):
            sentences.setdefault(_number(caption.image_file), {})[language] = caption.caption
    return {number: texts for number, texts in sentences.items() if len(texts) == len(languages)}


def _existing(path: pathlib.Path) -> pathlib.Path:
    """Returns the path; raises `UserError` if it does not exist."""
    if not path.exists():
        raise UserError(f"{path} does not exist: clone the repositories that docs/evaluation.md names into --data.")
    return path


def _report(problem: str, where: str) -> None:
    """Prints a problem for which a photograph or a caption is left out, and the place where it is."""
    print(f"Left out: {problem}, {where}", flush=True)


def _captions_by_number(captions: Iterable[caption_files.Caption]) -> dict[str, list[str]]:
    """Returns {Flickr's number: its captions}."""
    by_number: dict[str, list[str]] = {}
    for caption in captions:
        by_number.setdefault(_number(caption.image_file), []).append(caption.caption)
    return by_number


def _number(file_name: str) -> str:
    """Returns Flickr's number of a file: 1000268201_693b08cb0e.jpg in Flickr8k, 1000268201.jpg in Multi30K."""
    number, *_ = re.split("[_.]", file_name)
    return number


def fold_of(number: str) -> int:
    """Returns the fold that tests a photograph, 0 to `FOLD_COUNT` - 1, by a hash of Flickr's number."""
    return int(hashlib.sha256(number.encode()).hexdigest(), 16) % FOLD_COUNT


def write_fold(photographs: list[Photograph], sentences, folder: pathlib.Path, fold: int, share: float) -> None:
    """Makes and writes a fold's data folder; `dataset.json` comes last and tells that the folder is complete.

    Args:
      photographs: all photographs, see `read_photographs`.
      sentences: Multi30K's sentences, see `read_sentences`.
      folder: the folder to make.
      fold: the fold whose photographs are the test, see `fold_of`.
      share: the share of the training photographs with captions in the other languages, 0 to 1.
    """
    from mural_tf.data.records import write_records

    test = [photograph for photograph in photographs if fold_of(photograph.number) == fold]
    train = [photograph for photograph in photographs if fold_of(photograph.number) != fold]
    # By a hash: a random order, the same in every run, in which a larger share includes a smaller share.
    train.sort(key=lambda photograph: hashlib.sha256(f"few {photograph.number}".encode()).digest())
    translated = [photograph.number for photograph in train if photograph.sentences]
    captioned = set(translated[: round(share * len(translated))])
    folder.mkdir(parents=True)
    states = folder.parent / "states"
    states.mkdir(exist_ok=True)
    (folder / ".states").symlink_to(states.resolve())  # pictures and texts are the same in all folds
    train_records = (
        _record(photograph, with_others=photograph.number in captioned, with_arabic=False) for photograph in train
    )
    write_records(folder, IMAGE_TEXT, "train", train_records, shards=2)
    test_records = (_record(photograph, with_others=True, with_arabic=True) for photograph in test)
    write_records(folder, IMAGE_TEXT, "test", test_records)
    test_numbers = {photograph.number for photograph in test}
    write_records(folder, TEXT_PAIRS, "train", _pairs(sentences, test_numbers), shards=2)
    description = {"name": "photograph_folds", "settings": {"fold": fold, "share": share}}
    (folder / "dataset.json").write_text(json.dumps(description), encoding="utf-8")


def _record(photograph: Photograph, with_others: bool, with_arabic: bool) -> ImageTextRecord:
    """Returns a photograph's record with its English captions and, as asked for, captions in `OTHERS` and Arabic.

    An English caption that Multi30K translates has the same caption group as its translations.
    """
    captions = []  # (caption, language, group)
    translated = photograph.sentences.get("en", "")
    for number, caption in enumerate(photograph.english):
        is_translated = _letters(caption) == _letters(translated)
        captions.append((caption, "en", f"{photograph.number}:{'multi30k' if is_translated else number}"))
    if with_others:
        for language in OTHERS:
            if language in photograph.sentences:
                captions.append((photograph.sentences[language], language, f"{photograph.number}:multi30k"))
    if with_arabic:
        captions.extend((caption, "ar", f"{photograph.number}:ar") for caption in photograph.arabic)
    return ImageTextRecord(photograph.number, photograph.picture, *zip(*captions))


def _letters(text: str) -> str:
    """Returns a text's letters and digits in lower case: Multi30K writes spaces and punctuation in its own way."""
    return re.sub(r"\W", "", text.lower())


def _pairs(sentences: dict[str, dict[str, str]], test_numbers: set[str]) -> Iterator[TextPair]:
    """Yields each English sentence with its translations into `OTHERS`, without the sentences of `test_numbers`.

    `sentences`: see `read_sentences`.
    """
    for number, texts in sorted(sentences.items()):
        if number not in test_numbers:
            for language in OTHERS:
                yield TextPair(texts["en"], "en", texts[language], language, f"{number}:multi30k")


def configuration(row: Row, tower: str, data: pathlib.Path, seed: int) -> ConfigDict:
    """Returns the configuration of a row's run.

    Rows with the same text tower share both towers; rows that start from the towers share batches and rates as well.

    Args:
      row: the row.
      tower: the text tower, a name in `TOWER_NAMES`; a stage of translations takes the tower of the row before it.
      data: the fold's data folder.
      seed: the run's seed.
    """
    from mural_tf.configs import emoji_mural_translated, emoji_pretrained

    if row.method == "translated":
        config = emoji_mural_translated.get_config()
        config.method.pivot = "en"
        config.train.steps = STAGE_STEPS
    else:
        config = emoji_pretrained.get_config(row.method)
        config.image_tower.class_names = ""
        config.image_tower.projection = config.embedding_size = 256
        config.train.steps = 300  # enough for the heads; the frozen towers learn nothing
        config.optimizer.warmup_steps = 30
        config.train.image_text_batch = config.train.text_text_batch = 256
        if tower == "bert":
            _begin_from_nothing(config)
        if row.method == "etcl":
            _set_etcl_stage(config)
    config.seed = seed
    config.data.source = "records"
    config.data.directory = str(data)
    config.data.shuffle_buffer = 100_000  # more than all text pairs, 3 x 29,000
    config.train.export = False
    config.train.log_every = 100
    config.evaluation.groups = ConfigDict({"others": OTHERS})
    config.update_from_flattened_dict(row.fields)
    return config


def _set_etcl_stage(config: ConfigDict) -> None:
    """Sets the fields of [ETCL]'s stage, which tunes the heads of another row, in a configuration."""
    config.train.steps = 60
    config.optimizer.learning_rate = config.optimizer.text_text_learning_rate = 1e-3
    config.optimizer.warmup_steps = 0
    config.loss.text_text_weight = 1 / 3  # both: Eq. 4
    config.loss.image_text_weight = 1 / 3


def _begin_from_nothing(config: ConfigDict) -> None:
    """Puts `configs/emoji.py`'s BERT of two layers in place of a text tower, with the rate and steps to train it."""
    from mural_tf.configs import emoji

    small = emoji.get_config("mural")
    config.text_tower = small.text_tower
    config.text_tower.max_length = 40
    config.vocabulary = small.vocabulary
    config.optimizer.learning_rate = config.optimizer.text_text_learning_rate = 2e-3
    config.train.steps = 900  # three times as many, because the tower learns, too
    config.optimizer.warmup_steps = 90


def train(row: Row, tower: str, folder: pathlib.Path, data: pathlib.Path, runs: pathlib.Path, seed: int) -> dict:
    """Trains a row's run if it is not trained yet; returns its metrics, {"retrieval/de/mean_recall": percent, …}.

    The model that the run starts from is trained before, if it is not there: models are removed with a cell's last row.

    Args:
      row: the row.
      tower: the text tower, a name in `TOWER_NAMES`.
      folder: the run's workdir.
      data: the fold's data folder.
      runs: the folder of the workdirs of all rows, each under the row's name.
      seed: the run's seed.
    """
    from mural_tf.runs.finetune import finetune
    from mural_tf.runs.pretrain import pretrain

    if not (folder / "summary.json").exists():
        config = configuration(row, tower, data, seed)
        if row.after:
            first_row = next(other for other in ROWS if other.name == row.after)
            train(first_row, tower, runs / first_row.name, data, runs, seed)
            finetune(config, str(runs / first_row.name), folder)
        else:
            pretrain(config, folder)
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["metrics"]


def run_all(data: pathlib.Path, output: pathlib.Path, cells: Iterator[tuple[str, str, int, int]]) -> None:
    """Writes the folds' data, and runs all rows for each cell.

    Args:
      data: the folder of the clones.
      output: the folder of the folds' data, of the runs and of the table.
      cells: (tower, share, fold, seed) of each cell, names in `TOWER_NAMES` and `SHARES` and two numbers.

    Raises:
      UserError: a file of the clones is missing.
    """
    photographs = read_photographs(data)
    sentences = read_sentences(data)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    for tower, share, fold, seed in cells:
        folder = output / "data" / f"fold{fold}-{share}"
        if not (folder / "dataset.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            write_fold(photographs, sentences, folder, fold, SHARES[share])
        _run_rows(output, folder, tower, share, fold, seed, commit)


def main() -> None:
    """Runs every combination of the seeds, folds, towers and shares that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the clones")
    parser.add_argument("--output", type=pathlib.Path, default="results/folds", help="folder of data, runs and table")
    parser.add_argument("--folds", nargs="+", type=int, choices=range(FOLD_COUNT), default=range(FOLD_COUNT))
    parser.add_argument("--shares", nargs="+", choices=SHARES, default=list(SHARES), help="captions in the three")
    parser.add_argument("--towers", nargs="+", choices=TOWER_NAMES, default=["e5"], help="of texts")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each fold")
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    cells = (
        (tower, share, fold, seed)
        for seed, fold, tower, share in itertools.product(seeds, arguments.folds, arguments.towers, arguments.shares)
    )
    try:
        run_all(arguments.data, arguments.output, cells)
    except UserError as error:
        parser.exit(1, f"{error}\n")


def _run_rows(
    output: pathlib.Path, folder: pathlib.Path, tower: str, share: str, fold: int, seed: int, commit: str
) -> None:
    """Runs the rows that the table lacks for a cell, adds and prints their lines, and removes the models.

    Args:
      output: the folder of the table and of the runs.
      folder: the fold's data folder.
      tower, share, fold, seed: the cell, see `run_all`.
      commit: the commit that measures.
    """
    table = output / "folds.csv"
    runs = output / "runs" / f"{tower}-{share}-fold{fold}-seed{seed}"
    for row in ROWS:
        key = {"method": f"{CAPTIONED[share]}{TOWER_NAMES[tower]}: {row.name}", "seed": f"{fold}.{seed}"}
        if share not in row.shares or any(key.items() <= line.items() for line in read_rows(table)):
            continue
        metrics = train(row, tower, runs / row.name, folder, runs, seed)
        recalls = {language: metrics[f"retrieval/{language}/mean_recall"] for language in ("en", *OTHERS, "ar")}
        recalls["three"] = statistics.mean(recalls[language] for language in OTHERS)
        cells = {title: f"{recalls[language]:.2f}" for language, title in COLUMNS.items()}
        line = {**key, "commit": commit, **cells}
        add_row(table, line)
        print(" ".join(line.values()), flush=True)
    shutil.rmtree(runs, ignore_errors=True)


if __name__ == "__main__":
    main()
