"""Golden vectors: a file as `golden.py` writes it, compared stage by stage; PyTorch's own is in the parity test.

What compares is slow: the file is a proof for maintainers, and test_pretrained_align.py has the numbers of its model.
"""

import io
import pathlib
import subprocess
import sys

import foreign_weights as foreign
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from benchmarks import golden
from benchmarks.golden_check import _as_hugging_face, _rows, compare, main, read_golden
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
def test_rounding_of_pixels_is_allowed(values, imported):
    def round_otherwise(pixels):
        pixels[:, ::4, ::2, 0] += 3

    def everywhere(pixels):
        pixels[pixels < 255] += 1

    lines = compared(with_own_vectors(spoiled(values, "pixels", round_otherwise), imported), imported)
    assert lines[1] == "pixels: at most 3 of 255 apart, 0.14 on average"
    with pytest.raises(UserError, match=r"pixels: at most 1 of 255 apart, 1\.00 on average\.$"):
        compared(with_own_vectors(spoiled(values, "pixels", everywhere), imported), imported)


def with_own_vectors(values, imported):
    """With the vectors that the file's pixels give."""
    return {**values, "image_vectors": imported[0].embed_images(tf.constant(values["pixels"] / 255)).numpy()}


def without_images(values):
    return {name: array for name, array in values.items() if name not in ("pixels", "image_vectors")}


@pytest.mark.slow
def test_texts_alone(values, imported):
    of_texts = without_images(values)
    assert len(compared(of_texts, imported, "sentences")) == 3
    tokens = {"input_word_ids": values["ids"], "input_mask": values["mask"], "input_type_ids": 0 * values["ids"]}
    states = tf.math.l2_normalize(imported[0].text_encoder(tokens), axis=-1).numpy()  # BERT brings no head
    assert len(compared({**of_texts, "text_vectors": states}, imported, "bert")) == 3


@pytest.mark.slow
def test_files_of_other_checkpoints(values, imported):
    for other, facts in [
        (without_images(values), "texts alone, and the weights an image tower"),
        ({**values, "ids": values["ids"] + 100}, "ids up to 1.., and the vocabulary"),
        ({**values, "text_vectors": values["text_vectors"][:, :9]}, "vectors of 9 numbers, and the model gives 160"),
        ({**values, "pixels": values["pixels"][:, :32, :32]}, r"pixels of \[4, 32, 32, 3\], and the model takes"),
        ({**values, "ids": np.zeros((4, 65), np.int32)}, "rows of 65 ids, and the model takes 64"),
    ]:
        with pytest.raises(UserError, match=f"^The golden file has {facts}.*: it is of another checkpoint"):
            compared(other, imported)


@pytest.mark.slow
def test_files_that_are_damaged_or_foreign(values, tmp_path):
    np.savez(tmp_path / "foreign.npz", numbers=np.arange(3))
    whole = io.BytesIO()
    np.savez(whole, **values)
    (tmp_path / "cut.npz").write_bytes(whole.getvalue()[:9000])
    np.savez(tmp_path / "pickle.npz", **values, more=np.array([{}], object))
    for name in ("foreign", "cut", "pickle"):
        with pytest.raises(UserError, match=f"{name}.npz is damaged, or not written by benchmarks/golden.py"):
            read_golden(tmp_path / f"{name}.npz")
    with pytest.raises(UserError, match="none.npz: there is no such file"):
        read_golden(tmp_path / "none.npz")


@pytest.mark.slow
def test_the_program_says_pass_or_what_differs(values, folder, tmp_path, capsys):
    path = tmp_path / "golden.npz"
    np.savez(path, **spoiled(values, "text_vectors", lambda vectors: vectors.fill(0.1)))
    with pytest.raises(UserError, match="^Not the golden vectors. text tower: numbers at most"):
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


def test_writing_needs_no_tensorflow(tmp_path):
    check = "import sys, benchmarks.golden; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=pathlib.Path(__file__).parents[3]).returncode == 0
    done = subprocess.run(
        [sys.executable, golden.__file__, tmp_path, tmp_path / "x.npz"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "") and "expected the folder of a checkpoint" in done.stderr
    assert not (tmp_path / "x.npz").exists()
