"""TensorFlow's notices, which it writes past Python's `sys.stderr`, kept from the terminal by a setting."""

from __future__ import annotations

import os


def quiet_imports() -> None:
    """From now on importing TensorFlow prints no notices; from 2.20 on it prints six before it reads the setting."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what goes wrong arrives as an exception anyway
