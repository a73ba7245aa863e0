"""Characters that ftfy's tables replace: its own answers, and the same in TensorFlow's graph."""

import pytest

from mural_lite.litert.pieces import CLEANING
from mural_lite.plain_characters import as_plain, plain_characters

# What ftfy 6.3.1 gives. It was asked for every character of Unicode, too: Â and Ã before a space are guessed at.
TEXTS = {
    "l’hôtel “Bleu” ‘a‛ „b‟ ʼn ŉ": "l'hôtel \"Bleu\" 'a' \"b\" 'n 'n",
    "ａｂｃ＇　２台￥": "abc' 2台¥",
    "ｶﾞﾗｽ ﾊﾟﾝ": "ガラス パン",
    "ﬁne oﬃce ﬆ ﬅ Ĳ ǆ": "fine office st ſt IJ dž",
    "\ufeffx\x07y\x7f \x1b[31;1mred\x1b[0m": "xy red",
    "\x85 \x93a\x94 \x81": '… "a" \x81',
    "it's ½ ① é plain": "it's ½ ① é plain",
}


@pytest.mark.parametrize("text", TEXTS)
def test_ftfys_answers(text):
    assert CLEANING["composed"](as_plain(text)) == TEXTS[text]


def test_the_graph_gives_the_same():
    tf = pytest.importorskip("tensorflow")
    from mural_tf.text.sentence_pieces import CLEANING as IN_GRAPH

    texts = [*TEXTS, "", "".join(chr(number) for number in plain_characters()), "".join(map(chr, range(0x20, 0x250)))]
    found = IN_GRAPH["plain_characters"](tf.constant(texts)).numpy()
    assert [text.decode() for text in found] == [as_plain(text) for text in texts]
    assert IN_GRAPH["plain_characters"](tf.constant([], tf.string)).shape == [0]
