"""MURAL-large ([MURAL] §3.2, A.1): EfficientNet-B7 and BERT-large, token embeddings factorised, 512 TPU v3 cores."""

from ml_collections import ConfigDict

from mural_lite.config import base_config


def get_config():
    config = base_config()
    config.model = "mural"
    config.image_tower.width = 2.0  # EfficientNet-B7 [MURAL] §3.2
    config.image_tower.depth = 3.1
    bert_large(config.text_tower)
    config.embedding_size = 640  # our inference: width of B7's last block, as 512 is of B5's
    config.train.image_text_batch = 16_384  # "4x larger samples used in training" [MURAL] §3.2
    config.train.text_text_batch = 16_384
    return config


def bert_large(text_tower: ConfigDict) -> None:
    """Sets the sizes of BERT-large, with factorised token embeddings, in the part `text_tower` of a configuration."""
    text_tower.layers = 24  # [MURAL] A.1, footnote 8
    text_tower.hidden_size = 1024
    text_tower.heads = 16  # BERT-large's; the "24 attention heads" of footnote 8 do not divide 1024
    text_tower.feed_forward_size = 4096  # BERT-large's; [MURAL] does not say
    text_tower.token_embedding_size = 256  # projected to 1024: 64M parameters at 250k pieces [MURAL] A.1
