"""Our numbers beside the papers': every published cell with its source, and a table of differences."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from mural_tf.evaluation.published_tables import COLUMNS, ROWS, TITLES

COLUMNS_A_BLOCK = 8  # so that a line fits a wide terminal


@dataclasses.dataclass(frozen=True)
class Cell:
    """One printed number. `metric`: our key for it; `value`: None for an empty cell; `footnote`: marked with †."""

    paper: str
    table: int
    setting: str
    row: str
    metric: str
    value: float | None
    footnote: bool

    @property
    def source(self) -> str:
        """Where it is printed."""
        return f"{self.paper} Table {self.table}, {self.setting}, {self.row}, column {self.metric}"


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


def compare(metrics: Mapping[str, float]) -> str:
    """Returns tables of the published numbers for what `metrics` holds, each with ours minus it in brackets.

    Empty if no paper prints any of these metrics.
    """
    blocks = []
    for (paper, table), title in TITLES.items():
        cells = [cell for cell in published_cells() if (cell.paper, cell.table) == (paper, table)]
        columns = [metric for metric in COLUMNS[paper, table] if _comparable(metric, COLUMNS[paper, table], metrics)]
        for begin in range(0, len(columns), COLUMNS_A_BLOCK):
            block = _block(cells, columns[begin : begin + COLUMNS_A_BLOCK], metrics)
            blocks.append(f"{paper} Table {table}: {title} (ours minus it)\n{block}")
    return "\n\n".join(blocks)


def _comparable(metric: str, columns: tuple[str, ...], metrics: Mapping[str, float]) -> bool:
    """Whether `metrics` holds the metric, and, if it is a mean over a table's columns, over the same ones."""
    benchmark, row, rest = metric.split("/", 2)
    if row not in ("all", "monolingual", "cross-lingual"):
        return metric in metrics
    members = {other for other in columns if other != metric and other.split("/")[0] == benchmark}
    measured = {key for key in metrics if key.startswith(f"{benchmark}/") and key.split("/", 2)[2] == rest}
    if row == "all" and "accuracy" not in rest:  # a table of classification has no columns of single languages
        return metric in metrics and measured - {metric} == members
    return metric in metrics and (members <= measured or "accuracy" in rest)


def _block(cells: list[Cell], columns: list[str], metrics: Mapping[str, float]) -> str:
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.metric in columns:
            mark = "†" if cell.footnote else ""
            text = "-" if cell.value is None else f"{cell.value:.1f}{mark} ({metrics[cell.metric] - cell.value:+.1f})"
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
    """ "multi30k/de/mean_recall" -> "multi30k/de"; other metrics keep their names but for the benchmark's."""
    parts = metric.split("/")
    return "/".join(parts[:2]) if parts[-1] in ("mean_recall", "accuracy@1", "spearman") else "/".join(parts[1:])
