"""Our numbers next to published numbers: every cell with its source and protocol, and a table of differences.

The numbers are in `published.tsv`. [MURAL] Tables 2 to 6 (Jain et al., Findings of EMNLP 2021), [ETCL] all but 7 and
11 (Lee et al., COLING 2022), [MULE] Tables 2 to 11 (Kim et al., AAAI 2020). [Globetrotter] has only figures of the
measures used here: its tables are of adapted models, sentence correspondence and its own pictures. Later models:
[SigLIP 2] Table 1 (Tschannen et al., arXiv 2502.14786), with mSigLIP; the abstract of [MetaCLIP 2] (Chuang et
al., 2025); the README of COYO-ALIGN; and open_clip's numbers of nine models, its
docs/openclip_multilingual_retrieval_results.csv as of June 2026, made with CLIP_benchmark.

A block of the file, up to an empty line, is a table:

    paper    number or place    title    choice of `protocol.py` that it was made with=value    …
    setting  row    our metric for each column    …
    zero-shot  row as the paper names it    number    …

"-" is an empty cell, † a footnote of the table, "not said" a choice that the source does not state; choices that are
not there make no difference to the columns. Numbers of two protocols are not subtracted.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Mapping

from ml_collections import ConfigDict

from mural_tf.evaluation.protocol import default_protocol

NOT_SAID = "not said"  # by the source: neither equal nor different
COLUMNS_PER_BLOCK = 8  # so that a line fits a wide terminal


@dataclasses.dataclass(frozen=True)
class Cell:
    """One printed number.

    Attributes:
      value: the number; `None` for an empty cell.
      footnote: whether † marks it.
    """

    setting: str
    row: str
    metric: str
    value: float | None
    footnote: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """One printed table: `place` in its `paper`, choices of the `protocol` by dotted name, our metrics as `columns`."""

    paper: str
    place: str
    title: str
    protocol: Mapping[str, str]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The paper and the place in it, for example "MURAL Table 2" for place "2", or "COYO-ALIGN, README"."""
        if self.place.isdigit():
            return f"{self.paper} Table {self.place}"
        return f"{self.paper}, {self.place}"

    def choices(self, metric: str) -> dict[str, str]:
        """Returns {dotted name: value} of the choices that make a difference to the column of a metric."""
        benchmark, _, _ = metric.partition("/")  # for example "coco_5k", whose section of the protocol is "coco"
        choices = {name: value for name, value in self.protocol.items() if benchmark.startswith(name.split(".")[0])}
        if benchmark != "coco_1k":
            choices.pop("coco.one_k", None)
        if "/ja/" not in metric:
            choices.pop("coco.japanese", None)
        return choices


@functools.cache
def published_tables() -> dict[tuple[str, str], Table]:
    """Returns {(paper, place): table} of published.tsv, in its order; raises `ValueError` for a row of wrong length."""
    text = pathlib.Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    tables = map(_read_table, text.split("\n\n"))
    return {(table.paper, table.place): table for table in tables}


def _read_table(block: str) -> Table:
    """Returns the table of a block of the file: a line of paper, place, title and choices; the metrics; the rows."""
    head, names, *rows = (line.split("\t") for line in block.splitlines())
    paper, location, title, *choices = head
    columns = tuple(names[2:])
    cells = []
    for setting, row, *numbers in rows:
        for metric, number in zip(columns, numbers, strict=True):
            value = None if number == "-" else float(number.rstrip("†"))
            cells.append(Cell(setting, row, metric, value, number.endswith("†")))
    protocol = dict(choice.split("=") for choice in choices)
    return Table(paper, location, title, protocol, columns, tuple(cells))


@functools.cache
def languages_of_means() -> dict[str, frozenset[str]]:
    """Returns {benchmark: languages in open_clip's tables}, over which means in tables without languages are taken."""
    languages = collections.defaultdict(set)
    for table in published_tables().values():
        if table.paper == "open_clip":
            for column in table.columns:
                benchmark, row, _ = column.split("/", 2)
                languages[benchmark].add(row)
    return {benchmark: frozenset(rows - {"all"}) for benchmark, rows in languages.items()}


def compare(metrics: Mapping[str, float], protocol: ConfigDict | None = None) -> str:
    """Returns tables of published numbers as text, each number followed by ours minus the number in brackets.

    Our numbers are `metrics`, {`<benchmark>/<row>/<metric>`: number}, and their protocol, `None` for the defaults.
    Where a table has another protocol, nothing is subtracted, and a line says which choice differs. The text is "" if
    no paper prints any of these metrics.
    """
    protocol = protocol or default_protocol()
    metrics = {**metrics, **_means(metrics)}
    blocks = []
    for table in published_tables().values():
        columns = [metric for metric in table.columns if _comparable(metric, table.columns, metrics)]
        for begin in range(0, len(columns), COLUMNS_PER_BLOCK):
            blocks.append(_titled_block(table, columns[begin : begin + COLUMNS_PER_BLOCK], metrics, protocol))
    return "\n\n".join(blocks)


def _titled_block(table: Table, columns: list[str], metrics: Mapping[str, float], protocol: ConfigDict) -> str:
    """Returns the `columns`, metrics, of a table as text, below its title and notes why a column is not subtracted."""
    reasons = {metric: _differences(table, metric, protocol) for metric in columns}
    notes = {f"Not subtracted, {metric.split('/')[0]}: {reason}." for metric, reason in reasons.items() if reason}
    title = f"{table.name}: {table.title}"
    if not all(reasons.values()):
        title += " (ours minus it)"
    block = _table_text(table.cells, {metric: not reason for metric, reason in reasons.items()}, metrics)
    return "\n".join([title, *sorted(notes), block])


def _means(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns {`<benchmark>/all/<metric>`: mean over languages} of each recall@K, which evaluations do not hold."""
    values = collections.defaultdict(list)
    for key, value in metrics.items():
        benchmark, _, metric = key.partition("/")
        if benchmark in languages_of_means() and "/recall@" in metric:
            values[f"{benchmark}/all/{metric.split('/', 1)[1]}"].append(value)
    return {key: sum(numbers) / len(numbers) for key, numbers in values.items()}


def _differences(table: Table, metric: str, protocol: ConfigDict) -> str:
    """Returns in words how the protocol of a table's column differs from ours, "" if it does not differ."""
    differences = []
    for name, theirs in table.choices(metric).items():
        section, option = name.split(".")
        ours = protocol.get(section, {}).get(option, "mean")  # Tatoeba's two directions are not an option of ours
        if theirs == NOT_SAID:
            differences.append(f"its {name} is not given (ours is {ours})")
        elif str(ours) != theirs:
            differences.append(f"its {name} is {theirs}, ours {ours} (--protocol.{name}={theirs})")
    return "; ".join(differences)


def _comparable(metric: str, columns: tuple[str, ...], metrics: Mapping[str, float]) -> bool:
    """Whether `metrics`, ours, has `metric` and, if it is a mean over rows, over the same rows as the paper's.

    These rows are in the table's `columns`, its metrics, or else in `languages_of_means`.
    """
    benchmark, row, rest = metric.split("/", 2)
    if metric not in metrics:
        return False
    is_mean = row in ("all", "monolingual", "cross-lingual")
    if not is_mean or "accuracy" in rest:
        return True  # a table of classification has no columns of single languages
    published_members = _same_metric(columns, benchmark, rest) - {metric}
    if not published_members:
        published_members = {f"{benchmark}/{name}/{rest}" for name in languages_of_means().get(benchmark, ())}
    our_members = _same_metric(metrics, benchmark, rest)
    if row == "all":
        return our_members - {metric} == published_members
    return published_members <= our_members


def _same_metric(keys: Iterable[str], benchmark: str, metric: str) -> set[str]:
    """Returns the keys `<benchmark>/<row>/<metric>` of all rows among `keys`."""
    return {key for key in keys if key.startswith(f"{benchmark}/") and key.split("/", 2)[2] == metric}


def _table_text(cells: tuple[Cell, ...], columns: Mapping[str, bool], metrics: Mapping[str, float]) -> str:
    """Returns a table as text: heads, a row of our `metrics`, and the rows of the cells that are in `columns`.

    `columns` are {metric: whether its cells also show ours minus the published number}.
    """
    rows = {"ours": {metric: f"{metrics[metric]:.1f}" for metric in columns}}
    for cell in cells:
        if cell.metric in columns:
            ours = metrics[cell.metric] if columns[cell.metric] else None
            row = rows.setdefault(f"{cell.setting}, {cell.row}", {})
            row[cell.metric] = _cell_text(cell, ours)
    width = max(map(len, rows))
    heads = {metric: _column_head(metric) for metric in columns}
    lines = []
    for name, texts in {"": heads, **rows}.items():
        line = f"{name:{width}}"
        for metric, head in heads.items():
            line += f"  {texts[metric]:>{max(14, len(head))}}"  # 14: as wide as "100.0† (-12.3)"
        lines.append(line)
    return "\n".join(lines)


def _cell_text(cell: Cell, ours: float | None) -> str:
    """Returns a cell with ours minus the published number, "54.0† (-1.2)", or without our number "54.0†"."""
    if cell.value is None:
        return "-"
    text = f"{cell.value:.1f}"
    if cell.footnote:
        text += "†"
    if ours is not None:
        text += f" ({ours - cell.value:+.1f})"
    return text


def _column_head(metric: str) -> str:
    """Returns a column's head: "multi30k/de" for "multi30k/de/mean_recall"; other metrics only lose the benchmark."""
    parts = metric.split("/")
    short = parts[:2] if parts[-1] in ("mean_recall", "accuracy@1", "spearman") else parts[1:]
    return "/".join(short)
