"""The doctor names planted faults, whichever languages have them; and what it prints and refuses."""

import numpy as np
import pytest
import toy_data
from fake_embedder import FakeEmbedder, one_hot

from mural_lite.config_file import save_config
from mural_lite.errors import UserError
from mural_tf.analysis import doctor
from mural_tf.analysis.doctor import CUT_TEXTS, LABELS, PAIRS, STAGE, VOCABULARY, WELL
from mural_tf.data import records
from mural_tf.metrics import ranking
from mural_tf.text.word_pieces import WordPieceTokenizer

NAMES = ("am", "be", "cs", "de", "fr", "my", "sw", "tr", "zh")
FAULTS = (WELL, WELL, LABELS, LABELS, VOCABULARY, CUT_TEXTS, PAIRS, STAGE, STAGE)
IMAGES, WORDS, SIZE, LENGTH = 40, 12, 24, 10
KNOWN = [f"{name}{chr(97 + number)}" for name in ("en", *NAMES) for number in range(WORDS)]
TOKENIZER = WordPieceTokenizer([*toy_data.RESERVED, *KNOWN], max_length=LENGTH)


class Planted:
    """Texts of ten languages with `faults`, {language: fault}, and the vectors that a model gives them."""

    def __init__(self, faults, seed):
        rng = np.random.default_rng(seed)
        self.vectors, self.images = {}, _unit(rng.normal(size=[IMAGES, SIZE]))
        split, training, captions, pairs = {}, {}, {"en": 90}, {"en": 900}
        for name, fault in {"en": WELL, **faults}.items():
            count = LENGTH + 3 if fault == CUT_TEXTS else 4
            texts = [" ".join(f"{name}{chr(97 + n)}" for n in rng.integers(WORDS, size=count)) for _ in range(IMAGES)]
            if fault == VOCABULARY:
                texts = [text.replace(name, "\u1820\u1821") for text in texts]
            noise = 0.3 if fault == WELL else 4.0
            near = _unit(self.images + noise * rng.normal(size=[IMAGES, SIZE]) / np.sqrt(SIZE))
            self.vectors.update(zip(texts, near))
            split[name], training[name] = {f"i{n}": text for n, text in enumerate(texts)}, texts[: IMAGES // 2]
            if name != "en":
                captions[name], pairs[name] = int(rng.integers(10)), 3 if fault == PAIRS else 100
        swapped = [name for name, fault in faults.items() if fault == LABELS]
        split.update(zip(swapped, [split[name] for name in reversed(swapped)]))
        self.texts = doctor.TextsByLanguage(split, training, captions, pairs)
        own = np.arange(IMAGES)
        encoded = {name: self.encode_text(list(of.values())) for name, of in split.items()}
        self.recalls = {
            name: ranking.mean_recall(ranking.ranks(self.images, rows, own), ranking.ranks(rows, self.images, own))
            for name, rows in encoded.items()
        }

    def encode_text(self, texts, progress=False):
        return np.array([self.vectors[text] for text in texts], np.float32)


def _unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_planted_faults_are_named(seed):
    faults = dict(zip(np.random.default_rng(seed).permutation(NAMES).tolist(), FAULTS))
    planted = Planted(faults, seed)
    found = doctor.examine(planted, TOKENIZER, planted.texts, planted.recalls, "en")
    assert {language.name: language.diagnosis for language in found} == {"en": WELL, **faults}
    swapped = {name for name, fault in faults.items() if fault == LABELS}
    assert {language.looks_like for language in found if language.name in swapped} == swapped


def test_numbers_of_a_language():
    planted = Planted(dict.fromkeys(NAMES, WELL), 0)
    planted.texts.split = {
        "en": {"i0": "ena enb", "i1": "ena"},
        "cs": {"i1": "csa csa\u1820 " + "csb " * 8, "i9": "csa"},
    }
    planted.vectors = dict(zip([t for of in planted.texts.split.values() for t in of.values()], np.eye(4)))
    planted.vectors["csa"] = planted.vectors["ena"]
    found = doctor.examine(planted, TOKENIZER, planted.texts, {"en": 50.0, "cs": 20.0}, "en")
    cs = next(language for language in found if language.name == "cs")
    # csa, csa and the unknown letter, eight times csb: 11 pieces of 10 words, too long; and csa. i9 has no English.
    assert (cs.pieces_per_word, cs.unknown, cs.cut) == pytest.approx((12 / 11, 1 / 12, 0.5))
    assert cs.distance == 1.0 and cs.recall == 20.0 and cs.looks_like == "cs"
    with pytest.raises(UserError, match="No captions in the pivot sw; the split has cs, en"):
        doctor.examine(planted, TOKENIZER, planted.texts, {}, "sw")


def test_what_is_printed():
    languages = {"en": (50.0, WELL), "sw": (9.0, STAGE), "am": (3.0, VOCABULARY), "tr": (20.0, LABELS)}
    found = [doctor.Language(n, 7, 1_200, 2.0, 0.25, 0.1, 0.4, r, "zh", d) for n, (r, d) in languages.items()]
    lines = doctor.describe(found, "en").splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["am", "sw", "tr", "en"]  # worst first
    assert lines[2].split() == ["sw", "7", "1,200", "2.0", "25.0%", "10.0%", "0.40", "9.0", "stage"]
    assert "am: 25% of its pieces are unknown: train with a vocabulary that has its text." in lines
    assert "tr: its texts read like zh: check the language labels of the data." in lines
    assert any(line.startswith("sw: 1,200 translation pairs and 0.40 from en: the stage of") for line in lines)
    assert "after the stage: more pairs, or more steps" in doctor.describe(found, "en", taught=True)
    assert "Every language has 75% of en's recall or more." in doctor.describe(found[:1], "en")


def test_texts_are_read_by_language(tmp_path, monkeypatch):
    folder = toy_data.write_toy_data(tmp_path, count=10)
    with pytest.raises(UserError, match="No image_text records of split 'test'"):
        doctor.read_texts(str(folder), "test")
    records.write_records(folder, records.IMAGE_TEXT, "test", toy_data.image_text_records(3))
    monkeypatch.setattr(doctor, "PROFILE_TEXTS", 12)
    texts = doctor.read_texts(str(folder), "test")
    assert texts.split["de"] == {f"image{i}": f"ding v{i}" for i in range(3)}
    assert texts.captions == texts.pairs == {"en": 10, "de": 10}
    assert texts.training["en"] == [f"thing w{i}" for i in (*range(0, 10, 2), *range(1, 10, 2), 0, 1)]  # two shards


def test_the_command_examines_a_workdir(tmp_path, monkeypatch):
    images = [one_hot(number) for number in range(4)]
    rows = [
        records.ImageTextRecord(f"i{n}", image.encode(), [f"en{c}", f"de{c}"], ["en", "de"], ["", ""])
        for n, (image, c) in enumerate(zip(images, "abcd"))
    ]
    records.write_records(tmp_path, records.IMAGE_TEXT, "test", rows)
    english = records.ImageTextRecord("i9", b"", ["ene"], ["en"], [""])  # the pivot, by one caption
    records.write_records(tmp_path, records.IMAGE_TEXT, "train", [*rows, english])
    records.write_records(tmp_path, records.TEXT_PAIRS, "train", toy_data.text_pairs(4))
    config = toy_data.toy_config(tmp_path)
    save_config(config, tmp_path / "config.json")
    TOKENIZER.save(tmp_path / "vocabulary.txt")
    vectors = {f"{name}{c}": np.roll(np.eye(4)[n], shift) for n, c in enumerate("abcd")
               for name, shift in (("en", 0), ("de", 1))}  # fmt: skip
    monkeypatch.setattr("mural_lite.models.open_model", lambda path: FakeEmbedder(vectors))
    printed = doctor.check(str(tmp_path), str(tmp_path), "test", (), "")
    assert "de: 4 translation pairs and 1.00 from en: the stage of translations" in printed
    assert "de" not in doctor.check(str(tmp_path), str(tmp_path), "test", ("en",), "en").split()
    config.text_tower.name = "words"
    save_config(config, tmp_path / "config.json")
    with pytest.raises(UserError, match="knows whole words of each language"):
        doctor.check(str(tmp_path), str(tmp_path), "test", (), "en")
