"""benchmarks.tpu_rival: the loss of the plain Keras 3 program, the rows of the tables, missing packages."""

import importlib.util
import math
import os
import subprocess
import sys

import pytest

from benchmarks import tpu_rival
from mural_lite.errors import UserError
from mural_tf.training.tpu_program import Program

LOSS = """
import numpy as np
from benchmarks.keras_rival import matching_loss
print(float(matching_loss(np.eye(2, 3, dtype="float32") * 5, np.eye(2, 3, dtype="float32"), 0.5, margin=0.3)))
"""
TEXT = """HloModule step

%fused (p: bf16[8,8], q: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8] parameter(0)
  %q = bf16[8,8] parameter(1)
  ROOT %dot = bf16[8,8] convolution(%p, %q), dim_labels=bf_io->bf
}

%drawing (r: bf16[8,8]) -> bf16[8,8] {
  %r = bf16[8,8] parameter(0)
  ROOT %nested = bf16[8,8] fusion(%r), calls=%rounds
}

%rounds (t: bf16[8,8]) -> bf16[8,8] {
  %t = bf16[8,8] parameter(0)
  %bits = u32[8,8] xor(%t, %t)
  ROOT %sum = bf16[8] reduce(%bits)
}

ENTRY %main (a: bf16[8,8]) -> bf16[8,8] {
  %a = bf16[8,8] parameter(0)
  %copy.1 = bf16[8,8] copy(%a), op_name="jit(step)/jvp(image_encoder)/x", "estimated_cycles":"5"
  %copy.2 = u32[8,8] copy(%a), op_name="", "estimated_cycles":"7"
  %g = bf16[8,8] fusion(%a), calls=%drawing, op_name="jit(step)/transpose(jvp(text_encoder))/y", "estimated_cycles":"13"
  ROOT %f = bf16[8,8] fusion(%copy.1, %a), calls=%fused, op_name="LAMB/LAMB/update_1/mul", "estimated_cycles":"11"
}
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="the rival is a program on JAX")
def test_the_rivals_loss():
    """Pairs have cosine 1 - 0.3, others 0: each direction is log(e^1.4 + 1) - 1.4 = log(1 + e^-1.4)."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    finished = subprocess.run([sys.executable, "-c", LOSS], env=environment, stdout=subprocess.PIPE, text=True)
    assert float(finished.stdout) == pytest.approx(2 * math.log1p(math.exp(-1.4)), rel=1e-6)


def test_cycles_by_kind_and_part():
    program = Program(TEXT)
    kinds = tpu_rival.cycles_by({"ours": program}, tpu_rival.kind)
    assert kinds == {
        "products": {"ours": 11},
        "random numbers": {"ours": 7 + 13},
        "copies that change a layout": {"ours": 5},
    }
    parts = tpu_rival.cycles_by({"ours": program}, lambda instruction, _: tpu_rival.part(instruction))
    assert parts == {
        "text tower": {"ours": 13},
        "optimiser": {"ours": 11},
        "rest": {"ours": 7},
        "image tower": {"ours": 5},
    }


def test_ratios():
    lines = tpu_rival.table("", {"cycles": {"ours": 3e6, "rival": 2e6}}, ["ours", "rival"]).splitlines()
    assert lines[1].split() == ["cycles", "3,000,000", "2,000,000", "1.50"]


def test_missing_packages_are_one_line(monkeypatch):
    monkeypatch.setattr(tpu_rival, "has_compiler", lambda: False)
    with pytest.raises(UserError, match=r"^The TPU's own compiler is not here.*tpu_compiler.*$"):
        tpu_rival.check_packages()
    monkeypatch.setattr(tpu_rival, "has_compiler", lambda: True)
    monkeypatch.setattr(tpu_rival.importlib.metadata, "version", lambda name: "2.15.0")
    with pytest.raises(UserError, match=r"^The rival is a Keras 3 program.*pip install.*$"):
        tpu_rival.check_packages()
