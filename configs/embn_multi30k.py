"""EmbN on Multi30K ([MULE], Table 2a): one language in a model, here English; another: mule.py:embn,languages=de.

Several at once, mule.py:embn,languages=en+de+fr+cs, are the row "MULE EmbN".
"""

from mural_tf.configs.mule import get_config as mule


def get_config():
    return mule("embn")
