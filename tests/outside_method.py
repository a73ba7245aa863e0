"""A method that is not of this package, with a field of its own: ALIGN that asks for a margin."""

from mural_tf.losses.contrastive import contrastive_loss
from mural_tf.losses.pairs import Pairs
from mural_tf.models.align import Align


class WideAlign(Align):
    """ALIGN with an additive margin."""

    title = "ALIGN with a margin"
    fields = dict(image_text_margin=0.1)  # subtracted from the positive's cosine

    def image_text_loss(self, image, caption, ids):
        return contrastive_loss(Pairs(image, caption), self.temperature, margin=self.options.image_text_margin)
