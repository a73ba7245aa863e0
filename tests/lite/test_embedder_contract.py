"""What every form of a model does alike as an `Embedder`: in memory, workdir, export, LiteRT, a foreign checkpoint.

That their vectors are the model's own is in the tests of each form; `test_embedder.py` has what needs only one.
"""

import foreign_checkpoints
import numpy as np
import pytest
from test_embedder import ColorModel, byte_tokenizer, small_config
from toy_data import picture

import mural_tf
from mural_lite.errors import UserError
from mural_tf.models.embedder import embedder_of
from mural_tf.runs.import_pretrained import import_into_workdir
from mural_tf.runs.lite import export_lite

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis: pip install -e '.[test]'")
strategies = hypothesis.strategies
FEW = hypothesis.settings(max_examples=8, deadline=None)
TEXTS = ["thing w1", "a b c", "", "ding v7 " * 20, "thing w2", "日本 é"]
PICTURES = [picture(0), picture(1, side=50, kind="JPEG"), picture(2, side=90, kind="WEBP"), b"no picture"]
TOLERANCE = 2e-5  # of float32, where a batch's rows are padded or summed in another order


def foreign(folder):
    foreign_checkpoints.write_siglip(folder)
    return folder


def lite_of_bytes(folder):
    """The lite/ of a CLIP, whose words are bytes."""
    foreign_checkpoints.write_clip(folder / "clip")
    import_into_workdir("clip", folder / "clip", folder / "workdir")
    export_lite(folder / "workdir", folder / "export", precision="float32")
    return folder / "export/lite"


@pytest.fixture(scope="module", params=["memory", "workdir", "export", "lite", "lite of bytes", "foreign"])
def embedder(request, tmp_path_factory):
    if request.param == "memory":
        return embedder_of(ColorModel(), byte_tokenizer, small_config())
    if request.param == "foreign":
        return mural_tf.load(foreign(tmp_path_factory.mktemp("foreign") / "siglip"))
    if request.param == "export":
        return mural_tf.load(request.getfixturevalue("export"))
    if "lite" in request.param:
        pytest.importorskip("ai_edge_litert", reason="needs LiteRT: pip install -e '.[lite]'")
    if request.param == "lite of bytes":
        return mural_tf.load(lite_of_bytes(tmp_path_factory.mktemp("bytes")))
    folder = request.getfixturevalue("lite_toy")
    return mural_tf.load(folder / {"lite": "workdir/export/lite", "workdir": "workdir"}[request.param])


@FEW
@hypothesis.given(strategies.lists(strategies.integers(0, len(TEXTS) - 1), max_size=7), strategies.integers(1, 4))
def test_a_text_s_vector_does_not_depend_on_others(embedder, numbers, batch_size):
    alone = np.stack([embedder.encode_text(text) for text in TEXTS])
    found = embedder.encode_text((TEXTS[number] for number in numbers), batch_size=batch_size)
    assert found.shape == (len(numbers), embedder.embedding_size) and found.dtype == alone.dtype == np.float32
    assert np.abs(found - alone[numbers]).max(initial=0) < TOLERANCE
    lengths = np.linalg.norm(alone, axis=1)
    assert np.all((np.abs(lengths - 1) < 1e-5) | (lengths == 0))
    assert np.abs(alone[0] - alone[1]).max() > 1e-4


@FEW
@hypothesis.given(strategies.lists(strategies.integers(0, len(PICTURES) - 1), max_size=7), strategies.integers(1, 4))
def test_a_picture_s_vector_does_not_depend_on_others(embedder, numbers, batch_size):
    alone = np.stack([*map(embedder.encode_image, PICTURES[:-1]), np.zeros(embedder.embedding_size, np.float32)])
    usable = [place for place, number in enumerate(numbers) if number < len(PICTURES) - 1]
    images = [PICTURES[number] for number in numbers]
    found, kept = embedder.encode_image(iter(images), batch_size=batch_size, on_error="skip")
    assert kept.tolist() == usable and found.shape == (len(usable), embedder.embedding_size)
    assert np.abs(found - alone[np.array(numbers, int)[usable]]).max(initial=0) < TOLERANCE
    assert np.abs(np.linalg.norm(alone[:-1], axis=1) - 1).max() < 1e-5 and np.abs(alone[0] - alone[2]).max() > 1e-5
    if len(usable) < len(numbers):
        first = min(set(range(len(numbers))) - set(usable))
        with pytest.raises(UserError, match=f"Image {first} cannot be used"):
            embedder.encode_image(images, batch_size=batch_size)


def test_cosines_and_the_closest_pictures(embedder):
    images, texts = embedder.encode_image(PICTURES[:-1]), embedder.encode_text(TEXTS)
    cosines = embedder.similarity(PICTURES[:-1], TEXTS)
    np.testing.assert_allclose(cosines, images @ texts.T, atol=TOLERANCE)
    for k in (1, 2, 9):
        places, closest = embedder.search(images, texts, k=k)
        np.testing.assert_array_equal(places, np.argsort(-(images @ texts.T).T, axis=1, kind="stable")[:, :k])
        np.testing.assert_allclose(closest, np.take_along_axis(cosines.T, places, axis=1), atol=TOLERANCE)
