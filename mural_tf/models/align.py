"""ALIGN (Jia et al., 2021), as MURAL's baseline: only image-text matching, [MURAL] §3.

    L = w_i2t (L_i2t + L_t2i)

ALIGN-base has one projection head, 768 → 512, on the text tower and none on the image tower ([MURAL] A.1).
"""

from __future__ import annotations

from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.pairs import Pairs
from mural_tf.models.dual_encoder import Embedding, Task
from mural_tf.models.temperature import LearnedTemperature


class Align(LearnedTemperature):
    """Image-text matching. Batches hold `image`, `image_id`, `caption` (tokens) and `caption_id`."""

    title = "ALIGN: image-text matching with noisy text supervision (Jia et al., 2021), as MURAL's baseline"
    embeddings = {"image": Embedding("image"), "caption": Embedding("caption", head="image_text")}
    tasks = {"image_text": Task("image_text", ("image", "caption"), pair=("image", "caption"))}

    def image_text_loss(self, image, caption, ids):
        """Returns L_i2t + L_t2i of `Rows` [N, D] each, with the learned temperature, a float32 scalar."""
        pairs = Pairs(image, caption, self.same(ids, "image_id", "caption_id"))
        return contrastive_loss(pairs, self.temperature, label_smoothing=self.loss_config.label_smoothing)
