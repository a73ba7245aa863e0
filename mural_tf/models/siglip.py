"""SigLIP (Zhai et al., 2023): image-text matching by a sigmoid for every pair, instead of a softmax over the batch.

    L = -w_i2t / N sum_i sum_j log sigmoid( z_ij (cos(image_i, caption_j) / τ + b) ),   z_ij = 1 if i = j, else -1

Learned: log τ, from `loss.temperature` (1/10 in the paper), and the bias b, from `method.bias`. Towers and data are
ALIGN's, so that the two differ only in the loss; the paper's are vision transformers, and both its towers end in a
projection.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.backend import keras
from mural_tf.losses.pairs import Pairs
from mural_tf.losses.sigmoid import sigmoid_loss
from mural_tf.models.align import Align


class Siglip(Align):
    """Image-text matching by sigmoids, on ALIGN's batches."""

    title = "SigLIP: sigmoid loss for language-image pre-training (Zhai et al., 2023)"
    fields = dict(
        bias=-10.0,  # initial value of the learned bias: at first nearly every pair is a negative (SigLIP §3.2)
    )

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        initial = keras.initializers.Constant(self.options.bias)
        self.bias = self.add_weight(name="bias", shape=(), initializer=initial, trainable=True)

    def image_text_loss(self, image, caption, ids):
        """Returns L of `Rows` [N, D] each, with the learned temperature and bias, a float32 scalar."""
        pairs = Pairs(image, caption, self.same(ids, "image_id", "caption_id"))
        return sigmoid_loss(pairs, self.temperature, self.bias)

    def weights_by_part(self):
        return {**super().weights_by_part(), "bias": self.bias}

    def state_logs(self):
        return {**super().state_logs(), "bias": tf.identity(self.bias)}
