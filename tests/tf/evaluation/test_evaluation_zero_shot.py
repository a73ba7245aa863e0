"""Zero-shot classification and nearest neighbours on small folders in the data sets' layouts."""

import json

import fake_embedder
import numpy as np
import pytest
from fake_embedder import FakeEmbedder, one_hot
from test_evaluation_captioned import write

from mural_lite.embedder import class_embeddings
from mural_lite.errors import UserError
from mural_tf.evaluation import zero_shot

AXIS = {name: np.eye(4)[i] for i, name in enumerate(["cat", "dog", "fish", "tree"])}


class Words(FakeEmbedder):
    """A text's vector is that of the class word in it; an odd template points a little elsewhere. Arrays: the mean."""

    def encode_text(self, texts, **_):
        self.texts_encoded += texts
        vectors = []
        for text in texts:
            word = next(word for word in AXIS if word in text)
            vectors.append(AXIS[word] + (0.5 * AXIS["tree"] if text.startswith("odd") else 0))
        return np.array(vectors, np.float32)

    def encode_image(self, images, on_error="raise", **options):
        if len(images) and isinstance(images[0], np.ndarray):
            return np.array([np.eye(4)[int(x[0, 0, 0])] for x in images], np.float32), np.arange(len(images))
        return super().encode_image(images, on_error=on_error, **options)


def run(name, folder, **options):
    return fake_embedder.run(name, folder, Words(), **{"max_missing": 0.0, **options})[0]


@pytest.fixture
def imagenet(tmp_path):
    for label, wnid in enumerate(["n01", "n02", "n03"]):
        for k in range(2):
            write(tmp_path / "val" / wnid / f"ILSVRC2012_val_{k}.JPEG", one_hot(label))
    write(tmp_path / "val" / "n03" / "wrong.JPEG", one_hot(0))
    write(tmp_path / "class_names.en.txt", "cat\r\ndog\r\nfish")
    write(tmp_path / "templates.en.txt", "a photo of a {}.\nodd {c}\n")
    return tmp_path


def test_imagenet_accuracy_by_hand(imagenet):
    result = run("imagenet", imagenet)
    assert result.metrics["imagenet/en/accuracy@1"] == pytest.approx(100 * 6 / 7)  # one of seven lies in a wrong folder
    assert result.metrics["imagenet/en/accuracy@5"] == 100
    assert result.metrics["imagenet/well-resourced/accuracy@1"] == result.metrics["imagenet/all/accuracy@1"]
    assert result.sizes["en"] == {"pictures": 7, "classes": 3, "templates": 2}
    assert "the benchmark has 50,000" in result.notes[0] and result.protocol.startswith("NOT COMPLETE")


def test_names_by_imagenets_numbers_need_all_its_folders(imagenet):
    write(imagenet / "babel_imagenet.json", json.dumps({"EN": [[0], ["tree"]], "DE": [[0, 2], ["cat", "fish"]]}))
    with pytest.raises(UserError, match="1,000 classes by their numbers, and there are 3 folders .*_names.de.txt"):
        run("imagenet", imagenet)
    result = run("imagenet", imagenet, languages=["en"])  # whose names are of a file with a line for each folder
    assert result.sizes["en"]["classes"] == 3
    write(imagenet / "class_names.de.txt", "cat\ndog\nfish")
    assert set(run("imagenet", imagenet).sizes) == {"de", "en"}


def test_partial_names_of_the_published_json(imagenet, monkeypatch):
    monkeypatch.setattr(zero_shot, "IMAGENET_CLASSES", 3)
    (imagenet / "class_names.en.txt").unlink()
    write(imagenet / "babel_imagenet.json", json.dumps({"DE": [[0, 2], ["cat", "fish"]]}))
    result = run("imagenet", imagenet)
    assert result.sizes == {"de": {"pictures": 5, "classes": 2, "templates": 1}}
    assert result.metrics["imagenet/de/accuracy@1"] == pytest.approx(100 * 4 / 5)
    assert "de names 2 of 3 classes" in " ".join(result.notes) and "de has no templates" in " ".join(result.notes)


def test_class_embedding_is_the_mean_of_normalised_embeddings():
    # (1, 0) and (0, 3) normalise to unit vectors; their mean points to (1, 1) / sqrt(2), not to (1, 3).
    np.testing.assert_allclose(class_embeddings(np.array([[1.0, 0], [0, 1]]), 2), [[0.5**0.5, 0.5**0.5]])


def test_cifar100_in_its_binary_version(tmp_path):
    rows = np.zeros((3, 2 + 3072), np.uint8)
    rows[:, 1] = [0, 1, 2]  # the fine labels
    rows[:, 2] = [0, 1, 1]  # red of the first pixel, read as the axis of the image's vector
    write(tmp_path / "cifar-100-binary/fine_label_names.txt", "cat\ndog\nfish\n")
    path = tmp_path / "cifar-100-binary/test.bin"
    path.write_bytes(rows.tobytes())
    assert run("cifar100", tmp_path).metrics["cifar100/en/accuracy@1"] == pytest.approx(200 / 3)
    for damaged in (rows.tobytes()[:-1], b"", rows.tobytes().replace(b"\0\2\1", b"\0\3\1")):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="test.bin is not a file of CIFAR-100's binary version with 3 classes"):
            run("cifar100", tmp_path)


def test_sun397_and_food101_layouts(tmp_path):
    write(tmp_path / "SUN397" / "ClassName.txt", "/a/cat\n/d/dog/indoor\n")
    write(tmp_path / "SUN397" / "a" / "cat" / "sun_a.jpg", one_hot(0))
    write(tmp_path / "SUN397" / "d" / "dog" / "indoor" / "sun_b.jpg", one_hot(1))
    result = run("sun397", tmp_path)
    assert result.metrics["sun397/en/accuracy@1"] == 100 and result.sizes["en"]["pictures"] == 2
    write(tmp_path / "food-101" / "meta" / "test.json", json.dumps({"fish": ["fish/1"], "dog": ["dog/2", "dog/3"]}))
    write(tmp_path / "food-101" / "images" / "fish" / "1.jpg", one_hot(2))
    write(tmp_path / "food-101" / "images" / "dog" / "2.jpg", one_hot(1))
    result = run("food101", tmp_path, max_missing=0.5)
    assert result.metrics["food101/en/accuracy@1"] == 100
    assert "1 of 3 images" in result.notes[0] and "3.jpg" in result.notes[0]


def test_knn_counts_the_class_among_the_first_k(tmp_path):
    # Query of class a is nearest to b's only image, then to a's: a miss at 1, a hit at 5. Query of b is a hit at 1.
    for path, vector in {
        "train/a/0.JPEG": "1 0",
        "train/b/0.JPEG": "0 1",
        "val/a/1.JPEG": "0.4 0.6",
        "val/b/1.JPEG": "0 1",
    }.items():
        write(tmp_path / path, vector)
    result = run("imagenet_knn", tmp_path)
    assert result.metrics["imagenet_knn/image_to_image/recall@1"] == 50
    assert result.metrics["imagenet_knn/image_to_image/recall@5"] == 100
