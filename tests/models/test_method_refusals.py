"""What methods and losses refuse, in one line each: the call, the words that must occur."""

import contract
import pytest
import tensorflow as tf
from refusals import assert_refused

from mural_tf.data.streams.text_text import pivot_languages
from mural_tf.errors import UserError
from mural_tf.losses.globetrotter import nt_xent, transitive_weights
from mural_tf.losses.mule import distances
from mural_tf.losses.pairs import Pairs


def built(method="mural", **fields):
    return lambda: contract.build(contract.toy_config(method, **fields))


ONE = tf.eye(2)
REFUSALS = {
    "no loss at all": (built("align", loss__image_text_weight=0.0), ["Align without any loss"]),
    "another embedding size": (built(embedding_size=64), ["embedding_size=24"]),
    "a temperature to be set": (built("labse", method__text_text_temperature=0.0), ["set it"]),
    "a temperature below 0": (built(method__text_text_temperature=-0.1), ["above 0"]),
    "a temperature that is no number": (built(method__text_text_temperature=float("nan")), ["above 0"]),
    "an unknown alpha": (lambda: transitive_weights(ONE, ONE, "book"), ["expected one of code, paper"]),
    "unknown anchors": (lambda: nt_xent(Pairs(ONE, ONE), 1.0, anchors="second"), ["expected one of both, first"]),
    "an unknown distance": (lambda: distances(ONE, ONE, "manhattan"), ["euclidean, cosine"]),
    "captions without a language": (
        lambda: pivot_languages("", lambda: {"": 4}, dict),
        ["No caption says its language", "--config.method.pivot"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    assert_refused(*REFUSALS[name], errors=(UserError, ValueError))
