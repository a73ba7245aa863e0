"""What tells models apart: their vectors of a few texts and pictures."""

import numpy as np
import pytest
from search_data import ColorEmbedder

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.fingerprint import TEXTS as PROBES
from mural_lite.fingerprint import Fingerprint, take_fingerprint


def test_fingerprints_tell_models_apart_not_their_rounding():
    one = take_fingerprint(ColorEmbedder())
    close = Fingerprint(one.probes + np.float32(0.003), "same weights, lower precision")
    one.check(close, "It")
    assert one.distance(one) < 1e-6 and str(one) == "a3624dda06b2"  # as indexes keep it
    # Unit vectors (1, 0) and (0.8, 0.6): cosine 0.8, so the distance is 0.2.
    a, b = (Fingerprint(np.array([[1, 0], v], np.float32)) for v in ([1, 0], [0.8, 0.6]))
    assert abs(a.distance(b) - 0.2) < 1e-6
    for other in (take_fingerprint(ColorEmbedder(seed=1)), a):
        with pytest.raises(UserError, match="It was made by the model colors at step 7"):
            one.check(other, "It")


@pytest.mark.parametrize("tower", ["features", "none"])
def test_models_without_pictures_have_a_fingerprint(tower):
    class Model:
        config = base_config()

        def encode_text(self, texts):
            return np.eye(len(texts), 8, dtype=np.float32)

        def encode_image(self, images):
            assert tower == "features"
            return np.stack([np.frombuffer(image, "<f4") for image in images])

    Model.config.image_tower.update(dict(name=tower, feature_size=8))
    probes = take_fingerprint(Model()).probes
    assert probes.shape == (len(PROBES) + (2 if tower == "features" else 0), 8)
    assert take_fingerprint(Model()).distance(take_fingerprint(Model())) < 1e-6
