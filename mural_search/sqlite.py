"""Python's `sqlite3`, with the library that Python was built with.

Later lines of TensorFlow hold a SQLite of their own, without FTS5, and show its functions to libraries that are loaded
after them. So the library's own are asked for first.
"""

from __future__ import annotations

import os
import sys

if "_sqlite3" not in sys.modules and hasattr(os, "RTLD_DEEPBIND"):
    _flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
    try:
        import _sqlite3  # noqa: F401
    finally:
        sys.setdlopenflags(_flags)

import sqlite3  # noqa: E402

__all__ = ["sqlite3"]
