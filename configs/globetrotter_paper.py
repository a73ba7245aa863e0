"""globetrotter_resnet18 as the paper has it where the authors' code differs: one text head, α of Eq. 2, sums, λ = 0.2.

Sums are divided by the number of sentences. What stays different (L_v counts half, [0, 1] in α alone) stands in
models/globetrotter.py.
"""

from mural_tf.configs.globetrotter_resnet18 import get_config as globetrotter


def get_config():
    return globetrotter("paper")
