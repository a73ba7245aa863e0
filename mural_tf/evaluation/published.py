"""Our numbers beside published ones: every cell with its source and protocol, and a table of differences.

[MURAL] Tables 2 to 6 (Jain et al., Findings of EMNLP 2021), [ETCL] Tables 1 to 4 (Lee et al., COLING 2022), [MULE]
Tables 2 and 3 (Kim et al., AAAI 2020). What came after them: [SigLIP 2] Table 1 (Tschannen et al., arXiv 2502.14786),
with mSigLIP; the abstract of [MetaCLIP 2] (Chuang et al., 2025); the README of COYO-ALIGN; and open_clip's numbers of
nine models, its docs/openclip_multilingual_retrieval_results.csv as of June 2026, made with CLIP_benchmark, in
open_clip_*.tsv.

A line of `ROWS` is: setting | row as the paper names it | a number for each column. "-" is an empty cell, † a footnote
of the table. `COLUMNS` names our metric for each column, so that a cell and our number can stand side by side.
`PROTOCOLS` holds the choices of `protocol.py` that a table was made with. Numbers of two protocols are not subtracted.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from mural_tf.evaluation.protocol import default_protocol


def _metrics(pattern: str, values: str) -> tuple[str, ...]:
    return tuple(pattern.format(value) for value in values.split())


_MULTI30K = _metrics("multi30k/{}/mean_recall", "en de fr cs")
_RECALLS = "recall@1 recall@5 recall@10 mean_rank"

_BOTH_WAYS = ("text_to_image/recall@1", "image_to_text/recall@1")


def _open_clip(benchmark: str) -> tuple[tuple[str, ...], str]:
    """Returns the columns and the rows of a file of open_clip's numbers."""
    text = pathlib.Path(__file__).with_name(f"open_clip_{benchmark}.tsv").read_text(encoding="utf-8")
    (_, *columns), *rows = (line.split("\t") for line in text.splitlines())
    return tuple(columns), "\n".join(f"zero-shot | {row} | {' '.join(values)}" for row, *values in rows)


_XM3600, _XTD = _open_clip("xm3600"), _open_clip("xtd")

TITLES = {
    ("MURAL", 2): "mean recall; † fine-tuned on COCO-CN's different split, or SMALR's own test split",
    ("MURAL", 3): "mean recall on WIT, the authors' unreleased splits; ALIGN-base-en is translate-test",
    ("MURAL", 4): "XTD, zero-shot text to image Recall@10",
    ("MURAL", 5): "Crisscrossed Captions, retrieval, fine-tuned",
    ("MURAL", 6): "Crisscrossed Captions, Spearman's r x 100, mean and deviation, fine-tuned",
    ("ETCL", 1): "mean recall on Multi30K and MS-COCO 5K",
    ("ETCL", 2): "zero-shot classification accuracy@1, means over languages",
    ("ETCL", 3): "STS 2017, monolingual, Spearman's r x 100",
    ("ETCL", 4): "STS 2017, cross-lingual, Spearman's r x 100",
    ("MULE", 2): "mean recall on Multi30K",
    ("MULE", 3): "mean recall on MS-COCO, the authors' unpublished 1K split",
    ("SigLIP 2", 1): "Recall@1 on Crossmodal-3600, means over 36 languages, and MS-COCO 5K",
    ("MetaCLIP 2", "abstract"): "Recall@1 on Crossmodal-3600, mean over 36 languages",
    ("COYO-ALIGN", "README"): "Recall@1 on MS-COCO 5K",
    ("open_clip", "XM3600"): "Recall on Crossmodal-3600, with the first caption of each image and language",
    ("open_clip", "XTD"): "Recall on XTD, means over 11 languages and each of them",
}

COLUMNS = {
    ("MURAL", 2): _MULTI30K + _metrics("coco_1k/{}/mean_recall", "en ja") + _metrics("coco_5k/{}/mean_recall", "en ja"),
    ("MURAL", 3): _metrics("wit/{}/mean_recall", "en de fr cs ja zh ru pl tr tg uz ga be mg ceb ht war"),
    ("MURAL", 4): _metrics("xtd/{}/text_to_image/recall@10", "it es ru zh pl tr ko"),
    ("MURAL", 5): _metrics("cxc/image_to_text/{}", _RECALLS)
    + _metrics("cxc/text_to_image/{}", _RECALLS)
    + _metrics("cxc/text_to_text/{}", _RECALLS)
    + _metrics("cxc/image_to_image/{}", _RECALLS),
    ("MURAL", 6): tuple(f"cxc/{task}/{x}" for task in ("sts", "sis", "sits") for x in ("correlation", "deviation")),
    ("ETCL", 1): _metrics("multi30k/{}/mean_recall", "en de fr cs all")
    + _metrics("coco_5k/{}/mean_recall", "en ja ko all"),
    ("ETCL", 2): tuple(
        f"{data}/{group}/accuracy@1"
        for group in ("all", "well-resourced", "under-resourced")
        for data in ("imagenet", "sun397", "food101", "cifar100")
    ),
    ("ETCL", 3): _metrics("sts2017/{}/spearman", "en-en es-es ar-ar monolingual"),
    ("ETCL", 4): _metrics("sts2017/{}/spearman", "en-ar en-de en-tr en-es en-fr en-it en-nl cross-lingual"),
    ("MULE", 2): _MULTI30K,
    ("MULE", 3): _metrics("mule_coco/{}/mean_recall", "en zh ja"),
    ("SigLIP 2", 1): tuple(f"{data}/{way}" for data in ("xm3600/all", "coco_5k/en") for way in _BOTH_WAYS),
    ("MetaCLIP 2", "abstract"): ("xm3600/all/image_to_text/recall@1",),
    ("COYO-ALIGN", "README"): tuple(f"coco_5k/en/{way}" for way in _BOTH_WAYS),
    ("open_clip", "XM3600"): _XM3600[0],
    ("open_clip", "XTD"): _XTD[0],
}

NOT_SAID = "not said"  # by the source: neither equal nor different
_COCO = {"coco.captions_per_image": 5, "coco.one_k": "folds", "coco.japanese": "stair"}
_CXC = {"cxc.positives": "union", "cxc.co_captions": "rated", "cxc.sts_queries": "captions"}
# Choices of the protocol: those not named here make no difference to a table's columns.
PROTOCOLS = {
    ("MURAL", 2): {"multi30k.captions": "five", **_COCO},
    ("MURAL", 5): _CXC,
    ("MURAL", 6): _CXC,
    ("ETCL", 1): {"multi30k.captions": "five", **_COCO},
    ("MULE", 2): {"multi30k.captions": "five"},
    ("SigLIP 2", 1): {"xm3600.captions": NOT_SAID, "coco.captions_per_image": NOT_SAID},
    ("MetaCLIP 2", "abstract"): {"xm3600.captions": NOT_SAID},
    ("COYO-ALIGN", "README"): {"coco.captions_per_image": NOT_SAID},
    ("open_clip", "XM3600"): {"xm3600.captions": "first"},
}
# The languages of a published mean whose table has no columns of single ones.
LANGUAGES = {
    columns[0].split("/")[0]: frozenset(column.split("/")[1] for column in columns) - {"all"}
    for columns in (_XM3600[0], _XTD[0])
}

ROWS = {
    ("MURAL", 2): """
zero-shot | (1) M3P | 57.9 36.8 27.1 20.4 63.1 33.3 - -
zero-shot | (2) ALIGN-base TrTrain(AT-en) | 82.0 75.2 74.7 68.2 77.1 70.6 55.9 46
zero-shot | (3) ALIGN-base-en translate-test | 84.3 78.9 78.3 71.1 80.0 71.5 60.6 51.9
zero-shot | (4) ALIGN-base | 83.3 75.0 74.2 47.9 79.5 70.9 59.6 53.9
zero-shot | (5) MURAL-base TrTrain(CC12m)+EOBT | 80.9 76.0 75.7 68.2 78.1 72.5 58.0 49.7
zero-shot | (6) MURAL-base AT+MBT | 82.4 76.2 75.0 64.6 79.2 73.4 59.5 54.4
zero-shot | (7) MURAL-large AT+MBT | 89.2 83.5 83.1 77.0 84.4 81.3 67.7 64.6
zero-shot | (8) ALIGN-L2 AT-en | 92.2 - - - - - 70.9 -
fine-tuned | (9) SMALR | 74.5 69.8 65.9 64.8 81.5† 77.5† - -
fine-tuned | (10) M3P | 87.7 82.7 73.9 72.2 88.7† 87.9† - -
fine-tuned | (11) UC2 TrTrain(CC3m) | 88.2 84.5 83.9 81.2 88.1† 87.5† - -
fine-tuned | (12) ALIGN-base TrTrain(AT-en) | 92.2 88.5 88.1 84.5 89.0 87.5 74.8 72.5
fine-tuned | (13) ALIGN-base | 92.3 88.3 78.8 81.4 89.2 86.7 76.1 74.1
fine-tuned | (14) MURAL-base TrTrain(CC12m)+EOBT | 91.0 87.3 86.4 82.4 89.4 87.4 73.7 71.9
fine-tuned | (15) MURAL-base AT+MBT | 92.2 88.6 87.6 84.2 88.6 88.4 75.4 74.9
fine-tuned | (16) MURAL-large AT+MBT | 93.8 90.4 89.9 87.1 92.3 91.6 81.2 81.3
fine-tuned | (17) ALIGN-L2 AT-en | 96.0 - - - - - 83.4 -
""",
    ("MURAL", 3): """
zero-shot | (3) ALIGN-base-en | 46.5 33.9 42.3 32.4 29.9 36.2 40.1 39.2 40.5 30.0 23.4 26.1 27.3 33.6 34.9 41.6 -
zero-shot | (4) ALIGN-base | 46.7 33.5 45.0 26.5 33.6 35.2 30.9 29.9 31.4 21.2 15.6 12.9 8.9 23.9 31.0 33.1 24.0
zero-shot | (6) MURAL-base | 46.4 33.9 44.8 31.5 34.3 35.6 33.7 33.2 34.7 35.3 24.1 20.8 21.4 33.0 35.7 39.1 26.1
zero-shot | (7) MURAL-large | 60.7 46.1 60.0 43.6 48.1 49.9 45.7 45.8 49.8 45.7 33.7 30.8 33.4 45.6 45.6 52.4 37.7
fine-tuned | (21) ALIGN-base-en | 66.4 48.8 58.5 44.7 40.2 48.2 55.2 52.0 58.0 47.0 29.6 32.7 37.7 44.2 48.4 53.5 -
fine-tuned | (18) ALIGN-base | 75.6 69.2 76.2 65.5 64.4 78.2 68.3 68.3 75.0 53.0 36.3 35.8 50.3 45.0 72.4 62.5 78.1
fine-tuned | (19) MURAL-base | 77.1 70.0 77.2 68.4 64.8 79.6 70.8 70.7 78.2 64.2 44.1 41.9 59.3 55.1 76.4 67.6 79.0
fine-tuned | (20) MURAL-large | 82.4 76.3 83.3 74.5 71.9 86.7 77.4 77.4 85.7 72.9 53.5 51.4 69.8 62.3 82.3 76.7 84.2
""",
    ("MURAL", 4): """
zero-shot | mUSE+M3L | 78.9 76.7 73.6 76.1 71.7 70.9 70.7
zero-shot | (4) ALIGN-base | 87.9 88.8 82.3 86.5 79.8 73.5 76.6
zero-shot | (6) MURAL-base | 88.4 89.6 83.6 88.3 86.1 84.8 82.4
zero-shot | (7) MURAL-large | 91.8 92.9 87.2 89.7 91.0 89.5 88.1
""",
    ("MURAL", 5): """
fine-tuned | (22) DE-T2T+I2T | 55.9 84.2 91.8 - 41.7 72.3 83.0 - 42.4 64.9 74.0 - 38.5 73.6 84.9 -
fine-tuned | (13) ALIGN-base | 67.1 89.0 94.2 3.6 50.0 77.3 85.9 11.5 43.5 64.7 73.5 45.4 42.6 76.6 86.2 16.0
fine-tuned | (15) MURAL-base | 65.8 89.1 94.3 3.2 49.7 77.5 86.0 11.0 43.9 64.9 73.9 44.9 43.9 76.7 86.5 16.1
fine-tuned | (16) MURAL-large | 74.6 92.8 96.6 2.3 57.8 83.1 90.0 9.4 46.5 67.5 76.1 47.8 50.3 81.8 90.1 12.4
fine-tuned | (17) ALIGN-L2 | 78.1 94.3 97.4 - 61.8 84.9 91.1 - 45.4 66.8 75.2 - 49.4 81.4 89.1 -
""",
    ("MURAL", 6): """
fine-tuned | (22) DE-T2T+I2T | 74.5 0.4 74.5 0.9 61.9 1.3
fine-tuned | (13) ALIGN-base | 72.7 0.4 80.4 0.7 63.7 1.3
fine-tuned | (15) MURAL-base | 73.9 0.4 80.0 0.7 64.0 1.2
fine-tuned | (16) MURAL-large | 74.1 0.4 80.4 0.7 67.1 1.3
fine-tuned | (17) ALIGN-L2 | 72.9 0.4 77.2 0.8 67.6 1.2
""",
    ("ETCL", 1): """
zero-shot | ALIGN-base | 83.3 75.0 74.2 47.9 70.1 59.6 53.9 - -
zero-shot | ALIGN-L2 | 92.2 - - - - 70.9 - - -
zero-shot | MURAL-base | 82.4 76.2 75.0 64.6 74.6 59.5 54.4 - -
zero-shot | MURAL-large | 89.2 83.5 83.1 77.0 83.2 67.7 64.6 - -
zero-shot | MURAL(reprod.) | 90.1 70.5 70.1 63.7 73.6 67.8 40.6 31.5 46.6
zero-shot | MURAL(reprod.) + ETCL | 90.6 85.6 85.8 82.2 86.0 69.1 62.1 49.3 60.2
fine-tuned | ALIGN-base | 92.2 88.5 88.1 84.5 88.3 74.8 72.5 - -
fine-tuned | ALIGN-L2 | 96.0 - - - - 83.4 - - -
fine-tuned | MURAL-base | 92.2 88.6 87.6 84.2 88.2 75.4 74.9 - -
fine-tuned | MURAL-large | 93.8 90.4 89.9 87.1 90.3 81.2 81.3 - -
fine-tuned | MURAL(reprod.) | 94.5 89.8 90.2 87.8 90.6 79.3 77.9 73.3 76.9
fine-tuned | MURAL(reprod.) + ETCL | 94.8 91.0 91.3 89.7 91.7 79.8 79.2 77.0 77.8
""",
    ("ETCL", 2): """
zero-shot | MURAL(reprod.) | 18.4 29.6 29.1 16.6 26.4 40.4 29.1 16.6 15.2 23.0 29.4 16.7
zero-shot | MURAL(reprod.) + ETCL | 26.9 37.1 45.1 19.6 38.1 50.7 45.1 19.6 23.6 29.2 45.5 19.8
""",
    ("ETCL", 3): """
zero-shot | LaBSE | 79.4 80.8 69.1 76.4
zero-shot | MURAL(reprod.) | 84.8 80.5 69.2 78.1
zero-shot | MURAL(reprod.) + ETCL | 87.3 83.3 76.2 82.3
""",
    ("ETCL", 4): """
zero-shot | LaBSE | 74.5 73.8 72.0 65.5 77.0 76.9 75.1 73.5
zero-shot | MURAL(reprod.) | 70.7 70.4 69.8 69.1 72.9 71.8 72.4 71.0
zero-shot | MURAL(reprod.) + ETCL | 75.7 84.1 76.3 79.5 85.3 82.1 82.3 80.7
""",
    ("MULE", 2): """
trained | (a) FastText EmbN, one model a language | 71.1 57.9 43.4 33.4
trained | (a) FastText PARALLEL-EmbN | 69.6 61.6 52.0 43.2
trained | (b) ML BERT EmbN | 45.5 37.9 36.4 19.2
trained | (b) ML BERT PARALLEL-EmbN | 60.4 51.1 42.0 29.8
trained | (c) MUSE EmbN | 68.6 58.2 54.0 41.8
trained | (c) MUSE PARALLEL-EmbN | 69.5 59.0 51.6 40.7
trained | (c) MUSE EmbN+NC+LC+LP | 69.0 59.7 53.6 41.0
trained | (d) MULE EmbN | 67.5 59.2 52.5 43.9
trained | (d) MULE EmbN+NC | 67.2 59.9 54.0 46.4
trained | (d) MULE EmbN+NC+LC | 67.1 60.9 55.5 49.5
trained | (d) MULE EmbN+NC+LC+LP (full) | 68.0 61.4 56.4 50.3
""",
    ("MULE", 3): """
trained | (a) FastText EmbN, one model a language | 75.6 55.7 69.4
trained | (a) FastText PARALLEL-EmbN | 70.0 52.9 68.9
trained | (b) ML BERT EmbN | 59.4 44.7 47.2
trained | (b) ML BERT PARALLEL-EmbN | 57.6 57.5 62.1
trained | (c) MULE EmbN | 69.4 54.2 69.0
trained | (c) MULE EmbN+NC | 69.8 56.6 69.5
trained | (c) MULE EmbN+NC+LC | 71.3 57.9 70.3
trained | (c) MULE EmbN+NC+LC+LP (full) | 72.0 58.8 70.5
""",
    ("SigLIP 2", 1): """
zero-shot | mSigLIP So400m/16-256 | 50.0 62.8 49.4 68.6
zero-shot | SigLIP 2 g/16-384 | 48.6 57.9 56.1 72.8
zero-shot | SigLIP 2 B/16-256 | 40.7 51.0 53.2 69.7
""",
    ("MetaCLIP 2", "abstract"): """
zero-shot | MetaCLIP 2 ViT-H/14 | 64.3
""",
    ("COYO-ALIGN", "README"): """
zero-shot | COYO-ALIGN EfficientNet-B7 | 43.1 61.2
""",
    ("open_clip", "XM3600"): _XM3600[1],
    ("open_clip", "XTD"): _XTD[1],
}


COLUMNS_A_BLOCK = 8  # so that a line fits a wide terminal


@dataclasses.dataclass(frozen=True)
class Cell:
    """One printed number. `metric`: our key for it; `value`: None for an empty cell; `footnote`: marked with †."""

    paper: str
    table: int | str
    setting: str
    row: str
    metric: str
    value: float | None
    footnote: bool

    @property
    def source(self) -> str:
        """Where it is printed."""
        return f"{_place(self.paper, self.table)}, {self.setting}, {self.row}, column {self.metric}"

    @property
    def protocol(self) -> dict[str, object]:
        """The choices that it was made with, of those that matter to its column."""
        return _choices(self.paper, self.table, self.metric)


def _place(paper: str, table: int | str) -> str:
    return f"{paper} Table {table}" if isinstance(table, int) else f"{paper}, {table}"


def _choices(paper: str, table: int | str, metric: str) -> dict[str, object]:
    benchmark = metric.split("/")[0]
    made = PROTOCOLS.get((paper, table), {}).items()
    wanted = {name: value for name, value in made if benchmark.startswith(name.split(".")[0])}
    if benchmark != "coco_1k":
        wanted.pop("coco.one_k", None)
    if "/ja/" not in metric:
        wanted.pop("coco.japanese", None)
    return wanted


@functools.lru_cache(maxsize=1)
def published_cells() -> tuple[Cell, ...]:
    """Returns every cell of every table, in the order of print; raises `ValueError` for a row of the wrong length."""
    cells = []
    for (paper, table), text in ROWS.items():
        columns = COLUMNS[paper, table]
        for line in text.strip().splitlines():
            setting, row, values = (part.strip() for part in line.split("|"))
            numbers = values.split()
            if len(numbers) != len(columns):
                raise ValueError(f"{paper} Table {table}, {row}: {len(numbers)} numbers for {len(columns)} columns.")
            for metric, number in zip(columns, numbers):
                value = None if number == "-" else float(number.rstrip("†"))
                cells.append(Cell(paper, table, setting, row, metric, value, number.endswith("†")))
    return tuple(cells)


def compare(metrics: Mapping[str, float], protocol: ConfigDict | None = None) -> str:
    """Returns tables of the published numbers for what `metrics` holds, each with ours minus it in brackets.

    Where `protocol`, with which ours were made (None: the defaults), is not the table's, nothing is subtracted, and a
    line says which choice differs. Empty if no paper prints any of these metrics.
    """
    protocol, blocks = protocol or default_protocol(), []
    metrics = {**metrics, **_means(metrics)}
    for paper, table in TITLES:
        columns = [metric for metric in COLUMNS[paper, table] if _comparable(metric, COLUMNS[paper, table], metrics)]
        for begin in range(0, len(columns), COLUMNS_A_BLOCK):
            blocks.append(_titled_block(paper, table, columns[begin : begin + COLUMNS_A_BLOCK], metrics, protocol))
    return "\n\n".join(blocks)


def _titled_block(paper: str, table: int | str, columns: list[str], metrics, protocol: ConfigDict) -> str:
    cells = [cell for cell in published_cells() if (cell.paper, cell.table) == (paper, table)]
    reasons = {metric: _differences(paper, table, metric, protocol) for metric in columns}
    said = {f"Not subtracted, {metric.split('/')[0]}: {reason}." for metric, reason in reasons.items() if reason}
    how = "" if all(reasons.values()) else " (ours minus it)"
    block = _block(cells, {metric: not reason for metric, reason in reasons.items()}, metrics)
    return "\n".join([f"{_place(paper, table)}: {TITLES[paper, table]}{how}", *sorted(said), block])


def _means(metrics: Mapping[str, float]) -> dict[str, float]:
    """The means of single metrics over all measured languages, which evaluations give of the mean recall alone."""
    values: dict[str, list[float]] = {}
    for key, value in metrics.items():
        benchmark, _, metric = key.partition("/")
        if benchmark in LANGUAGES and "/recall@" in metric:
            values.setdefault(f"{benchmark}/all/{metric.split('/', 1)[1]}", []).append(value)
    return {key: sum(found) / len(found) for key, found in values.items()}


def _differences(paper: str, table: int | str, metric: str, protocol: ConfigDict) -> str:
    """Says in what the protocols of a column and of ours differ; "" if in nothing."""
    found = []
    for name, theirs in _choices(paper, table, metric).items():
        section, option = name.split(".")
        ours = protocol[section][option]
        if theirs == NOT_SAID:
            found.append(f"its {name} is not said (ours is {ours})")
        elif ours != theirs:
            found.append(f"its {name} is {theirs}, ours {ours} (--protocol.{name}={theirs})")
    return "; ".join(found)


def _comparable(metric: str, columns: tuple[str, ...], metrics: Mapping[str, float]) -> bool:
    """Whether `metrics` holds the metric, and, if it is a mean over a table's columns, over the same ones."""
    benchmark, row, rest = metric.split("/", 2)
    if row not in ("all", "monolingual", "cross-lingual"):
        return metric in metrics
    members = {other for other in columns if other != metric and other.split("/")[0] == benchmark}
    members = {other for other in members if other.split("/", 2)[1] != row and other.split("/", 2)[2] == rest}
    members = members or {f"{benchmark}/{language}/{rest}" for language in LANGUAGES.get(benchmark, ())}
    measured = {key for key in metrics if key.startswith(f"{benchmark}/") and key.split("/", 2)[2] == rest}
    if row == "all" and "accuracy" not in rest:  # a table of classification has no columns of single languages
        return metric in metrics and measured - {metric} == members
    return metric in metrics and (members <= measured or "accuracy" in rest)


def _block(cells: list[Cell], columns: Mapping[str, bool], metrics: Mapping[str, float]) -> str:
    """The lines of some columns; of those that are True, with the difference."""
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.metric in columns:
            mark = "†" if cell.footnote else ""
            text = "-" if cell.value is None else f"{cell.value:.1f}{mark}"
            if cell.value is not None and columns[cell.metric]:
                text += f" ({metrics[cell.metric] - cell.value:+.1f})"
            rows.setdefault(f"{cell.setting}, {cell.row}", {})[cell.metric] = text
    ours = {"ours": {metric: f"{metrics[metric]:.1f}" for metric in columns}}
    width = max(len(row) for row in rows)
    heads = [_short(metric) for metric in columns]
    widths = [max(14, len(head)) for head in heads]
    lines = [f"{'':{width}}" + "".join(f"  {head:>{w}}" for head, w in zip(heads, widths))]
    for row, values in {**ours, **rows}.items():
        lines.append(f"{row:{width}}" + "".join(f"  {values[m]:>{w}}" for m, w in zip(columns, widths)))
    return "\n".join(lines)


def _short(metric: str) -> str:
    """ "multi30k/de/mean_recall" -> "multi30k/de"; other metrics keep their names without the benchmark's."""
    parts = metric.split("/")
    return "/".join(parts[:2]) if parts[-1] in ("mean_recall", "accuracy@1", "spearman") else "/".join(parts[1:])
