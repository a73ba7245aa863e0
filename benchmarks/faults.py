"""Prints the table of faults and parts that stands in docs/reliability.md, from tests/faults.py.

python -m benchmarks.faults
"""

from __future__ import annotations

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from faults import as_markdown

if __name__ == "__main__":
    print(as_markdown(), end="")
