"""globetrotter_resnet18 as [P] has it where the authors' code differs: one text head, α of Eq. 2, sums, λ = 0.2."""

from configs.globetrotter_resnet18 import get_config as globetrotter


def get_config():
    return globetrotter("paper")
