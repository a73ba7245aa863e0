"""ETCL's ablation "+xx" ([ETCL] §5, table 13): MURAL trained on with the image-text loss on one further language.

python run_finetune.py --config=configs/etcl_plus_language.py:cs --from=WORKDIR_OF_MURAL --workdir=…
"""

from mural_tf.configs.etcl_b7 import get_config as etcl


def get_config(language: str = "de"):
    return etcl(f"image_text,languages={language}")
