"""ETCL's ablation "+xx" ([ETCL] §5, table 13): MURAL trained on with the image-text loss on one further language.

python run_finetune.py --config=configs/etcl_plus_language.py:cs --from=WORKDIR_OF_MURAL --workdir=…
"""

from configs.etcl_b7 import get_config as etcl_config


def get_config(language: str = "de"):
    config = etcl_config()
    config.model = "mural"
    config.data.image_text_languages = (language,)
    config.loss.image_text_weight = 1.0
    config.loss.text_text_weight = 0.0  # no text-text term
    return config
