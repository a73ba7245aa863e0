"""globetrotter_resnet18 as [P] has it where the authors' code differs: one text head, α of Eq. 2, sums, λ = 0.2."""

from configs.globetrotter_resnet18 import get_config as code_config


def get_config():
    config = code_config()
    config.shared_head = True  # one head on the first token [P §3.5]
    config.text_tower.pooling = "first"
    config.method.alpha = "paper"  # Eq. 2
    config.method.alpha_divided = False  # Eq. 1
    config.method.image_image_weight = 0.2  # λ1 to λ3 [P B.1]
    config.loss.image_text_weight = 0.2
    config.method.cloze_weight = 0.2
    return config
