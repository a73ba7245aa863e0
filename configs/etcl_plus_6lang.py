"""ETCL's ablation "+6lang" ([ETCL] §5, table 7): the image-text loss on all six languages, without text-text term.

python run_finetune.py --config=configs/etcl_plus_6lang.py --from=WORKDIR_OF_MURAL --workdir=…
"""

from configs.etcl_b7 import get_config as etcl_config


def get_config():
    config = etcl_config()
    config.model = "mural"
    config.data.image_text_languages = ("en", "de", "fr", "cs", "zh", "ja")  # multilingual CC3M [ETCL §3.4]
    config.loss.image_text_weight = 1.0
    config.loss.text_text_weight = 0.0
    return config
