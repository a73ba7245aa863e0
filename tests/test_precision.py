"""Which precision "auto" stands for, on machines that the test describes."""

import pytest
import tensorflow as tf

from mural_tf.config import ConfigurationError
from mural_tf.encoders import precision


@pytest.mark.parametrize("tower,on_tpu,on_amx,expected", [
    ("text", True, False, "mixed_bfloat16"),
    ("image", True, False, "mixed_bfloat16"),
    ("text", False, True, "mixed_bfloat16"),
    ("image", False, True, "float32"),
    ("text", False, False, "float32"),
    ("image", False, False, "float32"),
])  # fmt: skip
def test_the_table(tower, on_tpu, on_amx, expected):
    assert precision.fast_precision(tower, on_tpu, on_amx) == expected


def test_amx_is_read_from_the_processors_flags(tmp_path):
    flags = tmp_path / "cpuinfo"
    for line, expected in (("flags : fma amx_bf16 amx_tile", True), ("flags : fma avx512_bf16", False)):
        flags.write_text(line)
        precision.has_amx.cache_clear()
        assert precision.has_amx(str(flags)) == expected
    assert not precision.has_amx(str(tmp_path / "missing"))


def test_auto_follows_the_machine(monkeypatch):
    for amx, expected in ((True, tf.bfloat16), (False, tf.float32)):
        monkeypatch.setattr(precision, "has_amx", lambda amx=amx: amx)
        assert precision.dtype_policy("auto", "text").compute_dtype == expected
        assert precision.dtype_policy("auto", "image").compute_dtype == tf.float32
        assert precision.dtype_policy("auto", "text").variable_dtype == tf.float32


def test_other_names_are_mistakes():
    with pytest.raises(ConfigurationError, match="'half': expected one of auto, float32, mixed_bfloat16"):
        precision.dtype_policy("half", "text")
