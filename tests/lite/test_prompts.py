"""Prompts stand before texts: the default one in the graph, for every consumer, others by their names."""

import contract
import numpy as np
import pytest
import tensorflow as tf
from toy_data import toy_tokenizer
from toy_export import toy_model

import mural_tf
from mural_lite.errors import UserError
from mural_search import ranking
from mural_search.queries import Query, encode_queries
from mural_tf.export.saved_model import export_model
from mural_tf.models.embedder import embedder_of
from mural_tf.text import tokenizer_of

DEFAULT, QUERY = "thing: ", "ding: "
TEXTS = ["w1 w2", "", "v7 ŋ"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One model without prompts, with a default and named ones, and that as an export and its Hub modules."""
    folder = tmp_path_factory.mktemp("prompts")
    config = contract.toy_config()
    model, tokenizer = toy_model(config), toy_tokenizer()
    bare = embedder_of(model, tokenizer, config)
    config = config.copy_and_resolve_references()
    config.vocabulary.prompt = DEFAULT
    config.vocabulary.prompts = (f"query={QUERY}", "passage=", "long=thing: w1 = ")
    prompted = embedder_of(model, tokenizer_of(config, tokenizer.vocabulary), config)
    return bare, prompted, (model, tokenizer, config, folder / "export")


@pytest.fixture(scope="module")
def exported(models):
    export_model(*models[2])
    return models[2][3]


@pytest.mark.parametrize("head, form", [
    ("", "memory"), ("text_text", "memory"),
    pytest.param("", "export", marks=pytest.mark.slow), pytest.param("text_text", "export", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_prompt_stands_before_every_text(models, head, form, request, eager):
    bare, prompted, _ = models
    if form == "export":
        prompted = mural_tf.load(request.getfixturevalue("exported"))
    if head:
        bare, prompted = bare.with_text_head(head), prompted.with_text_head(head)
    expected = {None: DEFAULT, "query": QUERY, "passage": "", "long": "thing: w1 = ", "": ""}
    vectors = {prompt: bare.encode_text([before + text for text in TEXTS]) for prompt, before in expected.items()}
    for prompt in expected:
        found = prompted.encode_text(TEXTS, prompt=prompt)
        assert np.abs(found - vectors[prompt]).max() < 1e-6, prompt
        single = prompted.encode_text(TEXTS[0], prompt=prompt)
        assert np.abs(single - found[0]).max() < 1e-6
    assert np.abs(vectors[None] - vectors["query"]).max() > 1e-2  # or nothing was compared


def test_an_unknown_prompt_is_refused_with_the_known_ones(models):
    with pytest.raises(UserError, match="has no prompt 'clustering': expected one of query, passage, long."):
        models[1].encode_text(TEXTS, prompt="clustering")


@pytest.mark.slow
def test_hub_modules_have_the_default_prompt_alone(models, exported):
    bare, hub = models[0], mural_tf.load(exported / "hub")
    expected = bare.encode_text([DEFAULT + text for text in TEXTS])
    assert np.abs(hub.encode_text(TEXTS) - expected).max() < 1e-6
    expected = bare.encode_text([f"thing: w1 = {text}" for text in TEXTS])  # what begins with the default is put before
    assert np.abs(hub.encode_text(TEXTS, prompt="long") - expected).max() < 1e-6
    with pytest.raises(UserError, match="puts 'thing: ' before every text, and this form of it takes no other prompt"):
        hub.encode_text(TEXTS, prompt="query")
    module = tf.saved_model.load(str(exported / "hub/text_preprocessor"))
    packed = module.bert_pack_inputs([module.tokenize(tf.constant(TEXTS))], tf.constant(8))
    np.testing.assert_array_equal(packed["input_word_ids"], module(tf.constant(TEXTS))["input_word_ids"])


def test_search_asks_with_the_prompt_of_questions(models, eager):
    bare, prompted, _ = models
    found = encode_queries(prompted, [Query("w1 w2")])
    assert np.abs(found - bare.encode_text([QUERY + "w1 w2"])).max() < 1e-6
    assert ranking.prompt_of(prompted, ranking.CAPTIONS) == {"prompt": "passage"}
    assert ranking.prompt_of(bare, ranking.QUESTIONS) == {}
