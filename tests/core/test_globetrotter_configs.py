"""The published sizes of ETCL, Globetrotter and the text-only encoder, and that the emoji ones are comparable."""

import forked
import pytest
import tensorflow as tf
from test_paper_configs import count_text, load, trainable

from mural_tf.backend import keras
from mural_tf.encoders import build_image_encoder, build_text_encoder
from mural_tf.errors import UserError

MILLION = 1e6


@forked.apart
def globetrotter_parts(name: str):
    """Parameters of the image side (tower and head), of token embeddings, and of the rest of the text tower."""
    config = load(name)
    with tf.Graph().as_default():
        keras.backend.set_learning_phase(0)
        image = build_image_encoder(config.image_tower)
        text = build_text_encoder(config.text_tower, config.vocabulary.size)
        tokens = text.get_layer("embeddings").token_table.shape.num_elements()
        assert image.embedding_size == config.embedding_size
        return trainable(image), tokens, trainable(text) - tokens, text.embedding_size


def test_globetrotter_has_the_published_sizes():
    # B.1, B.3: ResNet-18, 4 layers of 512 with 4 heads, 30,000 pieces, D = 128; feed-forward 1,024 and the heads'
    # 512 are the code's. The paper prints no total.
    image, tokens, rest, states = globetrotter_parts("globetrotter_resnet18")
    head = 513 * 512 + 2 * 512 + 513 * 128  # Dense 512, layer norm, Dense 128
    assert image == 11_689_512 - 513_000 + 513 * 512 + head  # ResNet-18 without classifier, Dense 512, head
    assert tokens == 30_000 * 512
    layer = 4 * (512 * 512 + 512) + 2 * 512 * 1024 + 1024 + 512 + 4 * 512
    assert rest == 4 * layer + (50 + 2 + 2) * 512  # positions, token types and the norm after them
    assert states == 2 * 512  # for two heads
    paper = load("globetrotter_resnet18:paper")  # one head, on the first state
    assert paper.shared_head and paper.text_tower.pooling == "first"
    assert not build_image_encoder(load("globetrotter_resnet18:images=none").image_tower).variables
    config = load("globetrotter_resnet18")
    # λ of its code, and of B.1
    for name, weight in (("globetrotter_resnet18", 1.0), ("globetrotter_resnet18:paper", 0.2)):
        loss, own = load(name).loss, load(name).method
        assert own.image_image_weight == loss.image_text_weight == own.cloze_weight == weight
        assert loss.text_text_weight == 1.0
    assert (config.loss.temperature, config.method.alpha_margin) == (0.1, 0.4)
    assert (config.optimizer.learning_rate, config.train.image_text_batch) == (1e-4, 800)
    assert config.train.steps == 200 * 3_150_000 // 800  # 200 epochs of 3.15M pairs [Globetrotter §4]


def test_etcl_is_the_reproduced_mural_and_its_stage():
    config, source = load("etcl_b7"), load("mural_etcl_reproduction")
    assert config.image_tower.to_dict() == source.image_tower.to_dict()
    assert config.text_tower.to_dict() == source.text_tower.to_dict()
    large = load("mural_large").image_tower  # EfficientNet-B7, counted there; and BERT-base. [ETCL] prints no counts
    assert (config.image_tower.width, config.image_tower.depth) == (large.width, large.depth)
    assert (config.train.image_text_batch, config.train.steps, config.optimizer.learning_rate) == (32_768, 3_000, 1e-4)
    assert config.optimizer.warmup_steps == 0  # straight down from 1e-4
    assert config.loss.image_text_weight == config.loss.text_text_weight == 1 / 3
    assert load("etcl_b7:image_text,languages=cs").data.image_text_languages == ("cs",)


def test_etcl_fine_tuning():
    config = load("etcl_finetune")
    assert config.train.steps == load("etcl_finetune:flickr30k").train.steps == 3_000
    assert load("etcl_finetune:mscoco").train.steps == 6_000 and config.train.image_text_batch == 2_048
    with pytest.raises(UserError, match="flickr30k, mscoco"):
        load("etcl_finetune:coco")


def test_labse_is_the_text_side_of_mural_base():
    config = load("labse_text")
    sizes = ("layers", "hidden_size", "heads", "feed_forward_size", "token_embedding_size", "max_length")
    tokens, transformer, hidden = count_text(config.vocabulary.size, **{key: config.text_tower[key] for key in sizes})
    assert tokens == 192_000_000 and abs(transformer - 85.1 * MILLION) < 0.05 * MILLION
    # LaBSE's published 471M are 501,153 * 768 pieces and BERT-base with its pooler (0.6M); 470M without it.
    assert abs(501_153 * 768 + transformer + (hidden + 1) * hidden - 471 * MILLION) < 0.8 * MILLION
    assert config.model == "labse"


GLOBETROTTERS = ["emoji:globetrotter", "emoji:globetrotter,alpha=pairs", "emoji:globetrotter,images=none"]


@pytest.mark.parametrize("name", ["emoji:etcl", *GLOBETROTTERS, "emoji:labse"])
def test_emoji_sizes_are_those_of_emoji_mural(name):
    config, mural = load(name), load("emoji_mural")
    for key in ("layers", "hidden_size", "heads", "feed_forward_size", "max_length"):
        assert config.text_tower[key] == mural.text_tower[key]
    assert config.vocabulary.to_dict() == mural.vocabulary.to_dict()
    assert config.embedding_size == mural.embedding_size and config.seed == mural.seed
    for key in ("image_text_batch", "text_text_batch"):
        assert config.train[key] == mural.train[key]
    if name == "emoji:etcl":  # after 1,100 steps of emoji_mural; a triple is two image-caption pairs
        assert 1_100 + 2 * config.train.steps == mural.train.steps
    else:
        assert config.train.steps == mural.train.steps
    if config.image_tower.name != "none":
        for key in ("name", "width", "depth", "image_size", "projection"):
            assert config.image_tower[key] == mural.image_tower[key]
