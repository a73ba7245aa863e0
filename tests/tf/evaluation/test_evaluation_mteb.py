"""mteb's own evaluation of an adapted model: its protocol, and retrieval of local pictures and texts, offline."""

import sys
import types

import numpy as np
import pytest
from PIL import Image

from mural_lite.errors import UserError

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


class Colours:
    """An embedder whose vector is a picture's mean colour, or the colour that a text names."""

    embedding_size = 3
    step = 5
    prompts = {"query": "query: ", "passage": "passage: ", "STS": "same: "}

    def __init__(self):
        self.asked = []  # prompts

    def encode_text(self, texts, progress=None, prompt=None):
        self.asked.append(prompt)
        return np.array([COLOURS[text.split()[-1]] for text in texts], np.float32) / 255

    def encode_image(self, images, progress=None):
        vectors = np.array([np.asarray(image, np.float32).mean(axis=(0, 1)) for image in images], np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def mteb():
    return pytest.importorskip("mteb", reason="the extra mteb brings PyTorch, so [test] lacks it", exc_type=ImportError)


@pytest.fixture
def encoder(mteb):
    from mural_tf.evaluation.mteb import MtebEncoder

    return MtebEncoder("workdirs/colours", embedder=Colours())


def encode(encoder, *batches, task_type="Retrieval", prompt_type=None):
    task = types.SimpleNamespace(name="Local", type=task_type)
    return encoder.encode(batches, task_metadata=task, hf_split="test", hf_subset="default", prompt_type=prompt_type)


def test_the_encoder_is_one_by_mtebs_own_protocol(encoder):
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.models_protocols import EncoderProtocol

    assert isinstance(encoder, AbsEncoder) and isinstance(encoder, EncoderProtocol)
    meta = encoder.mteb_model_meta
    assert (meta.name, meta.revision, meta.embed_dim) == ("mural_tf/colours", "step 5", 3)
    assert set(meta.modalities) == {"image", "text"}


def test_batches_of_texts_images_or_both(encoder):
    red = Image.new("RGB", (4, 4), "red")
    blue = Image.new("RGB", (5, 4), "blue")
    texts = encode(encoder, {"text": ["a red"]}, {"text": ["a green", "a blue"]})
    np.testing.assert_array_equal(texts, np.eye(3))
    np.testing.assert_allclose(encode(encoder, {"image": [red, blue]}), [[1, 0, 0], [0, 0, 1]])
    both = encode(encoder, {"text": ["a green", "a red"], "image": [red, red]})
    np.testing.assert_allclose(both, [[0.5**0.5, 0.5**0.5, 0], [1, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(encoder.similarity(texts, both)), texts @ both.T, rtol=1e-6)
    with pytest.raises(UserError, match="The task has audio: this model encodes texts and images"):
        encode(encoder, {"audio": [0]})


def test_prompts_are_those_of_sentence_transformers(encoder):
    from mteb.types import PromptType

    for task_type, prompt_type, expected in (
        ("Retrieval", PromptType.query, "query"),
        ("Retrieval", PromptType.document, "passage"),
        ("STS", None, "STS"),
        ("BitextMining", None, None),
    ):
        encode(encoder, {"text": ["a red"]}, task_type=task_type, prompt_type=prompt_type)
        assert encoder.model.asked[-1] == expected


def test_mteb_measures_retrieval_of_local_pictures(mteb, encoder, monkeypatch, tmp_path):
    """Three texts ask for one of three pictures; "a blue" asks for the red picture, which comes after the blue one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    from datasets import Dataset
    from datasets import Image as ImageFeature
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    names = list(COLOURS)
    files = [str(tmp_path / f"{name}.png") for name in names]
    for name, file in zip(names, files):
        Image.new("RGB", (8, 8), COLOURS[name]).save(file)

    class LocalPictures(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="LocalPictures", description="-", dataset={"path": "local", "revision": "1"}, type="Any2AnyRetrieval",
            category="t2i", modalities=["text", "image"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="hit_rate_at_1", reference=None, date=None, domains=None, task_subtypes=None, license=None,
            annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation=None,
        )  # fmt: skip

        def load_data(self, **options):
            queries = Dataset.from_dict({"id": names, "text": [f"a {name}" for name in names]})
            corpus = Dataset.from_dict({"id": names, "image": files}).cast_column("image", ImageFeature())
            right = {"red": {"red": 1}, "green": {"green": 1}, "blue": {"red": 1}}
            split = RetrievalSplitData(queries=queries, corpus=corpus, relevant_docs=right, top_ranked=None)
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    result = mteb.evaluate(encoder, LocalPictures(), cache=None, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    assert scores["recall_at_1"] == pytest.approx(2 / 3, abs=1e-4)
    assert scores["recall_at_3"] == 1


def test_without_mteb_a_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.delitem(sys.modules, "mural_tf.evaluation.mteb", raising=False)
    for name in [name for name in sys.modules if name.startswith("mteb.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"^mteb is missing: on Python 3.11 or later pip install -e '.\[mteb\]'"):
        import mural_tf.evaluation.mteb  # noqa: F401
