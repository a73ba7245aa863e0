"""Writes the measurements of docs/results/*.csv into the pages that show them.

    python -m benchmarks.results           # writes the tables anew
    python -m benchmarks.results --check   # names the pages whose tables differ from the files; exit code 1

A page names its table by a comment on a line of its own, and the table follows up to the next empty line:

    <!-- table: methods rows=ALIGN|MURAL columns=0,1,2,4 -->

is of docs/results/methods.csv, whose first line names the columns. `rows` lists the first cells of the rows to
show, and `columns` the columns, counted from 0; without them everything is shown. For a file with a line per seed, as
`benchmarks.table` writes it, the means ± standard deviations are shown, with one decimal less, without the columns seed
and commit. A column `held_out_names:4` is column 4 of that file, of the lines with the same first cell.
"""

from __future__ import annotations

import csv
import io
import pathlib
import re
import statistics
import sys

from mural_lite.files import write_whole

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
TABLE = re.compile(r"^(<!-- table: (\w+)(?: rows=([^>]*?))?(?: columns=([\w:,]+))? -->\n)(?:.+\n)*", re.MULTILINE)


def table(path: pathlib.Path, rows: str | None = None, columns: str | None = None) -> str:
    """Returns a file's table in Markdown; `rows` and `columns` as a page's comment has them.

    Columns of numbers are aligned at their end, except the first column.
    """
    head, lines = _lines(path)
    if rows:
        by_name = {line[0]: line for line in lines}
        lines = [by_name[row] for row in rows.split("|")]
    indices = list(range(len(head)))
    if columns:
        indices = []
        for column in columns.split(","):
            file, _, number = column.rpartition(":")
            index = int(number)
            if file:  # its column is put behind the others
                other_head, other_lines = _lines(path.with_name(f"{file}.csv"))
                cells = {line[0]: line[index] for line in other_lines}
                lines = [[*line, cells[line[0]]] for line in lines]
                head = [*head, other_head[index]]
                index = len(head) - 1
            indices.append(index)
    rule = []
    for index in indices:
        is_number = all(re.match(r"[-–\d]|$", line[index]) for line in lines)
        rule.append("---:" if is_number and index > 0 else "---")
    titles, *cell_lines = [[line[index] for index in indices] for line in (head, *lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, rule, *cell_lines))


def _lines(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """Returns (titles of the columns, lines of cells) of a file; lines per seed become their means."""
    with open(path, encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    if head[1:3] == ["seed", "commit"]:
        return [head[0], *head[3:]], _over_seeds(lines)
    return head, lines


def _over_seeds(lines: list[list[str]]) -> list[list[str]]:
    """Returns one line for each first cell, with the means of the cells behind seed and commit."""
    by_name: dict[str, list[list[str]]] = {}
    for name, _, _, *cells in lines:
        by_name.setdefault(name, []).append(cells)
    return [[name, *map(_mean_and_deviation, zip(*seeds))] for name, seeds in by_name.items()]


def _mean_and_deviation(cells: tuple[str, ...]) -> str:
    """Returns "mean ± standard deviation" of a column's cells, one for each seed; "–" if a cell is empty.

    The deviation is left out for a single seed, and for whole numbers, such as counts of pairs.
    """
    if "" in cells:
        return "–"
    numbers = list(map(float, cells))
    # All cells of a column have as many decimals as its first cell. The last one is left out, because it says less than
    # the seeds differ by.
    _, _, decimals = cells[0].partition(".")
    shown_decimals = max(0, len(decimals) - 1)
    mean = f"{statistics.mean(numbers):,.{shown_decimals}f}"
    if shown_decimals == 0 or len(numbers) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(numbers):.{shown_decimals}f}"


def write_rows(path: str | pathlib.Path, rows: list[dict]) -> None:
    """Writes a file of docs/results from {column: cell} of each line; the longest line names the columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(max(rows, key=len)), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def rendered(text: str) -> str:
    """Returns a page with the tables that its comments name."""
    return TABLE.sub(lambda match: match[1] + table(RESULTS / f"{match[2]}.csv", match[3], match[4]), text)


def main() -> int:
    """Writes the pages, or checks them; returns the exit code."""
    differ = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]:
        text = path.read_text(encoding="utf-8")
        if rendered(text) != text:
            differ.append(path)
            if "--check" not in sys.argv:
                path.write_text(rendered(text), encoding="utf-8")
    for path in differ:
        print(path.relative_to(ROOT))
    return int("--check" in sys.argv and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
