"""Each head of the text tower as an embedder of its own."""

import contract
import numpy as np
import pytest
from toy_data import toy_tokenizer

from mural_lite.errors import UserError
from mural_tf.export.signatures import text_signatures
from mural_tf.models.embedder import embedder_of

TEXTS = ["thing w1", "ding v2", ""]


def test_a_head_gives_the_models_own_embeddings(model, config):
    tokenizer = toy_tokenizer()
    embedder = embedder_of(model, tokenizer, config)
    other = embedder.with_text_head("text_text")
    for made_by, head in ((embedder, "image_text"), (other, "text_text"), (embedder, "image_text")):
        expected = model.embed_texts(tokenizer(TEXTS, pad="longest"), head).numpy()
        np.testing.assert_allclose(made_by.encode_text(TEXTS, batch_size=3), expected, atol=1e-5)
    assert np.abs(embedder.encode_text(TEXTS) - other.encode_text(TEXTS)).max() > 0.01
    assert set(embedder.text_heads) == {"text_text"}
    before, weights = other.encode_text(TEXTS), [v.numpy() for v in model.text_text_head.variables]
    model.text_text_head.set_weights([weight[..., ::-1] for weight in weights])
    try:  # a head follows the weights
        np.testing.assert_allclose(embedder.with_text_head("text_text").encode_text(TEXTS), before[:, ::-1], atol=1e-5)
    finally:
        model.text_text_head.set_weights(weights)


@pytest.mark.slow
def test_align_has_one_head():
    config = contract.toy_config("align")
    model, tokenizer = contract.build(config), toy_tokenizer()
    embedder = embedder_of(model, tokenizer, config)
    assert not embedder.text_heads and set(text_signatures(model, tokenizer)[1]) == {"serving_default", "tokens"}
    with pytest.raises(UserError, match="no text head 'text_text'; besides image_text it has none"):
        embedder.with_text_head("text_text")
