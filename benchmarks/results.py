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
    """Returns a .csv file's table in Markdown; columns of numbers, except the first, are aligned at their end.

    Args:
      path: the file.
      rows: the first cells of the rows to show, as a page's comment has them: "ALIGN|MURAL"; `None`: all rows.
      columns: the columns to show, as a page's comment has them: "0,2,other_file:1"; `None`: all columns.
    """
    head, lines = _lines(path)
    if rows:
        by_name = {line[0]: line for line in lines}
        lines = [by_name[row] for row in rows.split("|")]
    if columns:
        shown = [_column(column, path, head, lines) for column in columns.split(",")]
    else:
        shown = list(zip(head, *lines, strict=True))
    rule = ["---"]
    for _, *cells in shown[1:]:
        is_number = all(re.match(r"[-–\d]|$", cell) for cell in cells)  # "–" and "": a number is missing
        rule.append("---:" if is_number else "---")
    titles, *cell_lines = zip(*shown)
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, rule, *cell_lines))


def _column(column: str, path: pathlib.Path, head: list[str], lines: list[list[str]]) -> list[str]:
    """Returns [title, cell of each line] of a column: "2", or "other_file:2" for the cells of that file's lines.

    Args:
      column: the column, as a page's comment has it.
      path: the table's file, next to which other files lie.
      head: the titles of the table's columns.
      lines: the cells of the table's lines; a line of another file is found by its first cell.
    """
    file, _, number = column.rpartition(":")
    index = int(number)
    if not file:
        return [line[index] for line in (head, *lines)]
    other_head, other_lines = _lines(path.with_name(f"{file}.csv"))
    cells = {line[0]: line[index] for line in other_lines}
    return [other_head[index], *(cells[line[0]] for line in lines)]


def _lines(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    """Returns (titles of the columns, cells of each line) of a .csv file.

    Of a file with a line per seed, it returns the means over seeds, without the columns seed and commit.
    """
    with open(path, encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    if head[1:3] == ["seed", "commit"]:
        return [head[0], *head[3:]], _over_seeds(lines)
    return head, lines


def _over_seeds(lines: list[list[str]]) -> list[list[str]]:
    """Returns a line for each method: its name, and "mean ± standard deviation" over its seeds in each column.

    `lines`: (method, seed, commit, further cells) of each method and seed.
    """
    seeds_of: dict[str, list[list[str]]] = {}  # {method: the cells of each seed}
    for method, _, _, *cells in lines:
        seeds_of.setdefault(method, []).append(cells)
    return [[method, *map(_mean_and_deviation, zip(*seeds))] for method, seeds in seeds_of.items()]


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
    """Writes a .csv file from {column: cell} of each line, of which there must be some.

    The line with the most cells names the columns; a cell that another line lacks is empty.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(max(rows, key=len)), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def read_rows(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns {column: cell} of each line of a .csv file; [] if there is no such file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add_row(path: pathlib.Path, row: dict[str, object]) -> None:
    """Adds a line, {column: cell}, to a .csv file; if there is no such file, it is made, with the columns of `row`."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def rendered(text: str) -> str:
    """Returns a page's text with the tables that its comments name, made of the files as they are now."""
    return TABLE.sub(lambda match: match[1] + table(RESULTS / f"{match[2]}.csv", match[3], match[4]), text)


def main() -> int:
    """Writes tables into the pages, or only checks them, and prints the pages that differ; returns the exit code."""
    only_checks = "--check" in sys.argv
    exit_code = 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]:
        text = path.read_text(encoding="utf-8")
        new_text = rendered(text)
        if new_text == text:
            continue
        print(path.relative_to(ROOT))
        if only_checks:
            exit_code = 1
        else:
            path.write_text(new_text, encoding="utf-8")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
