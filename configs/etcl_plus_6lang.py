"""ETCL's ablation "+6lang" ([ETCL] §5, table 7): the image-text loss on all six languages, without text-text term.

python run_finetune.py --config=configs/etcl_plus_6lang.py --from=WORKDIR_OF_MURAL --workdir=…
"""

from mural_tf.configs.etcl_b7 import get_config as etcl


def get_config():
    return etcl("image_text,languages=en+de+fr+cs+zh+ja")  # multilingual CC3M [ETCL §3.4]
