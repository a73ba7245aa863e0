"""Small ETCL: a stage of 150 steps on top of emoji_mural, on triples of the benchmark's training captions.

    python run_finetune.py --config=configs/emoji_etcl.py --from=WORKDIR_OF_EMOJI_MURAL --workdir=…

Started from emoji_mural with --config.train.steps=1100, both together see as many pairs as emoji_mural alone: a triple
is two image-caption pairs and a text pair.
"""

from configs.emoji import emoji_config


def get_config():
    config = emoji_config("etcl", "core", steps=150)
    config.loss.image_text_weight = 1 / 3  # Eq. 4 of ETCL
    config.loss.text_text_weight = 1 / 3
    config.optimizer.learning_rate = 1e-3  # a quarter of emoji_mural's peak, linearly to 0 (our choice)
    config.optimizer.text_text_learning_rate = 1e-3
    config.optimizer.warmup_steps = 0
    config.data.shuffle_buffer = 100_000  # triples
    return config
