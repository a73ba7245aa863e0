"""Fine-tuning that continues as another method: parts that the source lacks are new."""

import numpy as np
import pytest
import toy_data

from mural_tf.backend import keras
from mural_tf.errors import UserError
from mural_tf.models import build_model
from mural_tf.training.checkpoints import restore_for_inference, training_checkpoints
from mural_tf.training.fit import compile_model


@pytest.mark.slow
def test_mural_starts_from_align(tmp_path):
    models = {}
    for seed, method in enumerate(("align", "mural")):
        config = toy_data.toy_config(tmp_path, method)
        keras.utils.set_random_seed(seed)
        models[method] = build_model(config, 50)
        compile_model(models[method], config)
    align, mural = models["align"], models["mural"]
    checkpoints = training_checkpoints(align, tmp_path, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    with pytest.raises(UserError, match="does not fit"):
        restore_for_inference(mural, tmp_path)
    before = mural.text_text_head.kernel.numpy()
    restore_for_inference(mural, tmp_path, partly=True)
    np.testing.assert_array_equal(mural.text_text_head.kernel, before)
    for part in ("image_encoder", "text_encoder", "image_text_head"):
        for one, other in zip(getattr(align, part).variables, getattr(mural, part).variables):
            np.testing.assert_array_equal(one, other)
