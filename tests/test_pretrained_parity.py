"""Imported weights give what Hugging Face's PyTorch models give; needs `pip install -e '.[parity]'`.

The full-size test builds ALIGN as published (EfficientNet-B7 and BERT-base, 172 million parameters).
"""

import foreign_weights as foreign
import numpy as np
import pytest

from mural_tf.config import base_config
from mural_tf.pretrained.sources import import_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def float32_config(model="align", max_length=64):
    config = base_config()
    config.model = model
    config.text_tower.max_length = max_length
    config.image_tower.precision = config.text_tower.precision = "float32"
    return config


def fill(model):
    """Gives every tensor of a PyTorch model the values that `foreign_weights` has for its name."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.dtype == torch.float32:
                tensor.copy_(torch.tensor(foreign.value(name, tuple(tensor.shape))))
    return model.eval()


def hugging_face_outputs(model, images, tokens):
    """Embeddings and logits of uint8 [B, S, S, 3] and tokens; pixels in [-1, 1]."""
    pixels = torch.tensor(images.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2)
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(tokens["input_word_ids"]).long(),
            attention_mask=torch.tensor(tokens["input_mask"]).long(),
            pixel_values=pixels,
        )


def compare(model, expected, images, tokens):
    image, text = model.embed_images(images).numpy(), model.embed_texts(tokens).numpy()
    logits = image @ text.T / model.temperature.numpy()
    states = model.text_encoder(tokens).numpy()
    means = model.image_encoder(images.astype(np.float32) / 255.0).numpy()
    assert np.abs(image - expected.image_embeds.numpy()).max() < 1e-4
    assert np.abs(text - expected.text_embeds.numpy()).max() < 1e-4
    assert np.abs(logits - expected.logits_per_image.numpy()).max() < 1e-4
    assert np.abs(states - expected.text_model_output.last_hidden_state[:, 0].numpy()).max() < 1e-4
    pooled = expected.vision_model_output.pooler_output.numpy().reshape(means.shape)
    assert np.abs(means - pooled).max() < 1e-4 * np.abs(pooled).max()
    # The comparison would be worth little if everything were mapped to one point.
    assert np.min(image @ image.T) < 0.95 and np.min(text @ text.T) < 0.95


def test_small_align(tmp_path):
    folder = foreign.write_align(tmp_path)
    model, *_ = import_weights("align", folder, float32_config(max_length=16))
    images, tokens = foreign.random_images(4, 33), foreign.random_tokens(len(foreign.PIECES))
    expected = hugging_face_outputs(transformers.AlignModel.from_pretrained(folder).eval(), images, tokens)
    compare(model, expected, images, tokens)
