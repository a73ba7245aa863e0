"""Two replicas compute the losses and gradients of one with MULE and PARALLEL-EmbN too, in processes of their own."""

import mule_data
import numpy as np
import pytest
import test_replicas

CASES = ["mule,1,global", "mule,2,2", "parallel_embn,1,4"]


@pytest.mark.slow
def test_two_replicas_have_the_gradients_of_one(tmp_path, monkeypatch):
    """With micro-batches, and BatchNorm of the image branch over all images or groups of 2 or 4."""
    script = test_replicas.SCRIPT
    for old, new in (("numpy as np, ", "numpy as np, mule_data, "), ("toy_data.toy_config", "mule_data.config"),
                     ("toy_data.toy_tokenizer", "mule_data.tokenizer")):  # fmt: skip
        assert old in script
        script = script.replace(old, new)
    monkeypatch.setattr(test_replicas, "SCRIPT", script)
    folder = mule_data.write(tmp_path, 24)
    one, two = (test_replicas.gradients_of(replicas, folder, CASES) for replicas in (1, 2))
    assert set(one) == set(two) and len(one) > 60
    for name, expected in one.items():
        assert np.max(np.abs(expected - two[name])) < 1e-4 * max(1.0, np.max(np.abs(expected))), name
    for part in ("word_vectors/embeddings", "language_classifier/kernel", "sentence_branch/lstm/cell/kernel"):
        assert np.max(np.abs(one[f"mule,2,2:{part}:0"])) > 1e-4, part
