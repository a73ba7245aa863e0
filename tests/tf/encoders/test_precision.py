"""Which precision "auto" means, on machines that the test describes."""

import pytest
import tensorflow as tf

from mural_tf.encoders import kernels


@pytest.mark.parametrize("tower,on_tpu,on_fast_processor,expected", [
    ("text", True, False, "mixed_bfloat16"),
    ("image", True, False, "mixed_bfloat16"),
    ("text", False, True, "mixed_bfloat16"),
    ("image", False, True, "float32"),
    ("text", False, False, "float32"),
    ("image", False, False, "float32"),
])  # fmt: skip
def test_the_table(tower, on_tpu, on_fast_processor, expected):
    assert kernels.fast_precision(tower, on_tpu, on_fast_processor) == expected


@pytest.mark.parametrize("processor,expected", [
    ("vendor_id : GenuineIntel flags : fma amx_bf16 amx_tile", True),
    ("vendor_id : GenuineIntel flags : fma avx512_bf16", False),
    ("vendor_id : AuthenticAMD flags : fma avx512_bf16", True),
    ("vendor_id : AuthenticAMD flags : fma avx2", False),
])  # fmt: skip
def test_the_processor_is_known_by_its_flags(tmp_path, processor, expected):
    (tmp_path / "cpuinfo").write_text(processor)
    assert kernels.multiplies_bfloat16(str(tmp_path / "cpuinfo")) == expected
    assert not kernels.multiplies_bfloat16(str(tmp_path / "missing"))


def test_auto_follows_the_machine(monkeypatch):
    for fast, expected in ((True, tf.bfloat16), (False, tf.float32)):
        monkeypatch.setattr(kernels, "multiplies_bfloat16", lambda fast=fast: fast)
        assert kernels.dtype_policy("auto", "text").compute_dtype == expected
        assert kernels.dtype_policy("auto", "image").compute_dtype == tf.float32
        assert kernels.dtype_policy("auto", "text").variable_dtype == tf.float32
