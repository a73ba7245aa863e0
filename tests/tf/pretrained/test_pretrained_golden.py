"""Golden vectors: a file as `golden.py` writes it, compared stage by stage; PyTorch's own is in the parity test.

What compares is slow: the file is a proof for maintainers, and test_pretrained_align.py has the numbers of its model.
"""

import io

import foreign_weights as foreign
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from benchmarks import golden
from benchmarks.golden_check import _as_hugging_face, _rows, compare, main
from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.data.images import prepare_image
from mural_tf.pretrained.importers import import_weights, importer_of
from mural_tf.text.vocabulary_file import RESERVED_TOKENS
from mural_tf.text.word_pieces import WordPieceTokenizer

SENTENCES = {  # and their pieces as BERT's tokenizer has them
    "A red balloon": ["a", "red", "balloon"],
    "the CATS, of Pari\u0301s.": ["the", "cat", "##s", ",", "of", "p", "##a", "##r", "##i", "##s", "."],
    "red☃ photo": ["[UNK]", "photo"],  # here "red" stays
    "": [],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return foreign.write_align(tmp_path_factory.mktemp("align"))


@pytest.fixture(scope="module")
def imported(folder):
    config = base_config()
    config.model = "align"
    config.image_tower.precision = config.text_tower.precision = "float32"
    return import_weights("align", folder, config)


@pytest.fixture(scope="module")
def values(imported):
    """The file's arrays, with the vectors of our own model."""
    model, config, pieces = imported
    ids = np.zeros((len(SENTENCES), 20), np.int32)
    for row, words in zip(ids, SENTENCES.values()):
        row[: len(words) + 2] = [pieces.index(piece) for piece in ("[CLS]", *words, "[SEP]")]
    mask = (ids > 0).astype(np.int32)
    pictures = golden.draw_pictures()
    pixels = tf.stack([prepare_image(picture, config.image_tower) for picture in pictures])
    tokens = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": 0 * ids}
    return {
        "format": np.array(golden.FORMAT),
        "sentences": np.array(list(SENTENCES)),
        "ids": ids,
        "mask": mask,
        "text_vectors": model.embed_texts(tokens).numpy(),
        **{f"picture_{i}": np.frombuffer(picture, np.uint8) for i, picture in enumerate(pictures)},
        "pixels": pixels.numpy().astype(np.float32),
        "image_vectors": model.embed_images(pixels).numpy(),
    }


def compared(values, imported, kind="align"):
    return compare(values, *imported, importer_of(kind).parts)


def spoiled(values, name, change):
    array = values[name].copy()
    change(array)
    return {**values, name: array}


@pytest.mark.slow
def test_equal_vectors_pass(values, imported):
    ids, pixels, images, texts, together = compared(values, imported)
    assert ids == "ids: equal for 4 sentences, 1 of them but for the tokens that docs/checkpoints.md names"
    assert pixels == "pixels: at most 0 of 255 apart, 0.00 on average"
    assert images.startswith("image tower: numbers at most ") and texts.startswith("text tower: numbers at most ")
    assert together.startswith("end to end: cosines of at least 1.00000 for 4 pictures and ")


def test_sigma_as_there():
    pieces = [*RESERVED_TOKENS, *"οδσς", "##δ", "##ο", "##σ", "##ς"]
    texts = ["ΟΔΟΣ οδος"]
    lower, cased = (WordPieceTokenizer(pieces, lower_case=lower_case) for lower_case in (True, False))
    first, final = ["ο", "##δ", "##ο", "##σ"], ["ο", "##δ", "##ο", "##ς"]
    assert [pieces[i] for i in _rows(_as_hugging_face(lower, texts))[0]] == ["[CLS]", *first, *final, "[SEP]"]
    assert [pieces[i] for i in _rows(lower(texts))[0]] == ["[CLS]", *final, *final, "[SEP]"]
    assert [pieces[i] for i in _rows(_as_hugging_face(cased, texts))[0]] == ["[CLS]", "[UNK]", *final, "[SEP]"]


@pytest.mark.slow
def test_each_stage_is_named(values, imported):
    def message(name, change):
        with pytest.raises(UserError, match="^The vectors differ from the golden vectors. ") as error:
            compared(spoiled(values, name, change), imported)
        return str(error.value).split("vectors. ")[1]

    pieces = imported[2]

    def other_piece(ids):
        ids[1, 3] = pieces.index("[UNK]")

    there = [pieces.index(piece) for piece in ("[UNK]", ",", "of", "p", "##a")]
    here = [pieces.index("##s"), *there[1:]]
    ids, text = message("ids", other_piece).split("; text tower: ")
    assert ids == (
        f"ids: 1 of 4 sentences differ, first {list(SENTENCES)[1]!r}: 13 ids here, 13 there; from place 3 {here} here, "
        f"{there} there"
    )
    assert text.startswith("numbers at most ")  # the vector is that of the other ids

    def brighter(pixels):
        pixels[pixels < 251] += 4

    pixels, image = message("pixels", brighter).split("; image tower: ")
    assert pixels.startswith("pixels: at most 4 of 255 apart, ") and "numbers at most " in image

    def nudge(vectors):
        vectors[2, 5] += 0.02

    assert message("image_vectors", nudge) == "image tower: numbers at most 2.0e-02 apart."
    assert message("text_vectors", nudge) == "text tower: numbers at most 2.0e-02 apart."


@pytest.mark.slow
def test_the_program_says_pass_or_what_differs(values, folder, tmp_path, capsys):
    path = tmp_path / "golden.npz"
    np.savez(path, **spoiled(values, "text_vectors", lambda vectors: vectors.fill(0.1)))
    with pytest.raises(UserError, match="^The vectors differ from the golden vectors. text tower: numbers at most"):
        main(["golden_check", str(folder), str(path)])
    np.savez(path, **values)
    main(["golden_check", str(folder), str(path)])
    assert "PASS: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments, words", [
    ([], "Expected two arguments"), (["nothing", "x.npz"], "nothing is not the folder of a checkpoint"),
])  # fmt: skip
def test_the_program_takes_a_checkpoint_and_a_file(arguments, words):
    with pytest.raises(UserError, match=words):
        main(["golden_check", *arguments])


def test_inputs():
    assert len(set(golden.SENTENCES)) == 24 and "" in golden.SENTENCES
    assert max(map(len, golden.SENTENCES)) > 2000 and any(sentence.isascii() for sentence in golden.SENTENCES)
    pictures = golden.draw_pictures()
    assert pictures == golden.draw_pictures()
    sizes = [PIL.Image.open(io.BytesIO(picture)).size for picture in pictures]
    assert sizes == [(width, height) for height, width in golden.SIDES]
