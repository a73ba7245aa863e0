"""EmbN on Multi30K ([MULE], Table 2a): one language a model, here English.

Another: --config.text_tower.languages="('de',)". Several at once give the row "MULE EmbN".
"""

from configs.mule import mule_config


def get_config():
    config = mule_config("embn", ("en",))
    return config
