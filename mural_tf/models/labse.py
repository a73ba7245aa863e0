"""A LaBSE-style dual encoder of texts (Feng et al., 2020): only MURAL's text-text task.

    L = L_r2l + L_l2r

BERT's [CLS] state through one Dense head; fixed temperature and additive margin as in [MURAL] §3.1. Left out, of LaBSE
itself: pretraining with masked tokens and translation language modelling, and stacking layers during training.
"""

from __future__ import annotations

from mural_lite.errors import UserError
from mural_tf.models.mural import TextText


class Labse(TextText):
    """Only text-text matching."""

    title = "LaBSE-style dual encoder of texts (Feng et al., 2020), MURAL's text-text task alone"

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        if not self.options.text_text_temperature:
            raise UserError("method.text_text_temperature=0 takes the images' temperature, which labse lacks: set it.")
