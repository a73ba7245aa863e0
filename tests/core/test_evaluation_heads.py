"""Each head of the text tower as an embedder of its own."""

import numpy as np
import pytest
from toy_data import toy_config, toy_tokenizer

from mural_tf.embedder import Embedder
from mural_tf.errors import UserError
from mural_tf.models import build_model

TEXTS = ["thing w1", "ding v2", ""]


@pytest.fixture(scope="module", params=["mural", "align"])
def made(request, tmp_path_factory):
    config = toy_config(tmp_path_factory.mktemp("data"), request.param)
    tokenizer = toy_tokenizer()
    model = build_model(config, tokenizer.vocabulary_size)
    return request.param, model, tokenizer, Embedder.from_model(model, tokenizer, config)


def test_a_head_gives_the_models_own_embeddings(made):
    name, model, tokenizer, embedder = made
    if name == "align":
        assert not embedder.text_heads
        with pytest.raises(UserError, match="no text head 'text_text' beside image_text: none"):
            embedder.with_text_head("text_text")
        return
    other = embedder.with_text_head("text_text")
    for made_by, head in ((embedder, "image_text"), (other, "text_text"), (embedder, "image_text")):
        expected = model.embed_texts(tokenizer(TEXTS, pad="longest"), head).numpy()
        np.testing.assert_allclose(made_by.encode_text(TEXTS, batch_size=3), expected, atol=1e-5)
    assert np.abs(embedder.encode_text(TEXTS) - other.encode_text(TEXTS)).max() > 0.01
    assert set(embedder.text_heads) == {"text_text"}


def test_heads_follow_the_weights(made):
    name, model, _, embedder = made
    if name == "align":
        pytest.skip("ALIGN has one head")
    before = embedder.with_text_head("text_text").encode_text(TEXTS)
    model.text_text_head.kernel.assign(model.text_text_head.kernel[:, ::-1])
    np.testing.assert_allclose(embedder.with_text_head("text_text").encode_text(TEXTS), before[:, ::-1], atol=1e-5)
