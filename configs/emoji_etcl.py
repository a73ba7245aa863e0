"""Small ETCL: a stage of 150 steps on top of emoji_mural, on triples of the benchmark's training captions.

    python run_finetune.py --config=configs/emoji_etcl.py --from=WORKDIR_OF_EMOJI_MURAL --workdir=…

Started from emoji_mural with --config.train.steps=1100, both together see as many pairs as emoji_mural alone: a triple
is two image-caption pairs and a text pair.
"""

from mural_tf.configs.emoji import get_config as emoji


def get_config():
    return emoji("etcl")
