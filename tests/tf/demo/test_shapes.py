"""The shapes data set: its pictures, captions, splits and folder."""

import collections
import hashlib
import io
import json
import random

import numpy as np
import pytest
from PIL import Image

from mural_lite.errors import UserError
from mural_tf.data.records import IMAGE_TEXT, TEXT_PAIRS, read_records
from mural_tf.demo.shapes import (
    COLOR_JITTER,
    DEV_IMAGES,
    LANGUAGES,
    RGB,
    TEST_IMAGES,
    WELL_RESOURCED,
    Scene,
    all_scenes,
    build_shapes,
    captions,
    draw_scene,
)

IMAGES = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_shapes(tmp_path_factory.mktemp("data") / "shapes", images=IMAGES)


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_captions_by_hand():
    scene = Scene("heart", "red", "big", "white", 1)
    assert captions(scene, "en") == (
        "a big red heart on a white background",
        "on white: a heart, big and red",
    )
    assert captions(scene, "de")[0] == "ein großes rotes Herz auf weißem Hintergrund"
    several = Scene("cross", "blue", "small", "grey", 3)
    assert captions(several, "en")[0] == "three small blue crosses on a grey background"
    assert captions(several, "de")[0] == "drei kleine blaue Kreuze auf grauem Hintergrund"
    assert captions(Scene("diamond", "green", "big", "black", 1), "de")[0].startswith("eine große grüne Raute ")
    assert captions(several, "tr")[0] == "gri zemin üzerinde üç küçük mavi haç"
    assert captions(several, "ja")[0] == "灰色の背景に小さい青い十字が三つ"
    assert captions(several, "fa")[0] == "سه صلیب کوچک آبی روی زمینه خاکستری"
    assert captions(several, "tg")[0] == "се салиби хурди кабуд дар заминаи хокистарӣ"


def test_no_two_scenes_share_a_caption():
    scenes = all_scenes()
    assert len(scenes) == 8 * 8 * 2 * 3 * 3
    for language in LANGUAGES:
        texts = [text for scene in scenes for text in captions(scene, language)]
        assert len(set(texts)) == len(texts) == 2 * len(scenes), language


def pixels(scene, seed=0, size=48):
    return np.asarray(Image.open(io.BytesIO(draw_scene(scene, size, random.Random(seed)))).convert("RGB")).astype(int)


@pytest.mark.parametrize("shape", sorted({scene.shape for scene in all_scenes()}))
def test_pictures_show_what_the_caption_says(shape):
    jitter = COLOR_JITTER
    areas = {}
    for size in ("small", "big"):
        for count in (1, 2, 3):
            image = pixels(Scene(shape, "blue", size, "white", count))
            assert image.shape == (48, 48, 3)
            near = [(np.abs(image - np.array(RGB[name])).max(axis=-1) <= jitter) for name in ("blue", "white")]
            areas[size, count] = near[0].mean()
            assert near[1].mean() > 0.4
            assert near[0].mean() + near[1].mean() > 0.75  # the rest is smoothed edges
            border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
            assert np.abs(border - np.array(RGB["white"])).max() <= jitter  # nothing is cut off
    # Up to a tenth of jitter in the radius, the area grows with the count and with the square of the size.
    assert areas["big", 1] > 1.5 * areas["small", 1] > 0
    assert areas["small", 3] > 1.8 * areas["small", 1]
    assert areas["big", 3] > 1.8 * areas["big", 1]


def test_records_and_splits(folder):
    scenes = collections.defaultdict(set)
    for split, count in (("train", IMAGES), ("dev", DEV_IMAGES), ("test", TEST_IMAGES)):
        records = list(read_records(folder, IMAGE_TEXT, split))
        assert len({record.image_id for record in records}) == len(records) == count
        for record in records:
            assert set(record.languages) >= set(WELL_RESOURCED)
            assert len(set(record.caption_groups)) == 1
            assert collections.Counter(record.languages).most_common()[0][1] == 2  # several captions per picture
            scenes[split].add(record.caption_groups[0])
        with_tajik = sum("tg" in record.languages for record in records)
        assert with_tajik == (round(0.03 * IMAGES) if split == "train" else count)
    assert len(scenes["test"]) == TEST_IMAGES  # so captions of the test split are unique
    assert not scenes["train"] & (scenes["dev"] | scenes["test"]) and not scenes["dev"] & scenes["test"]

    pairs = list(read_records(folder, TEXT_PAIRS, "train"))
    assert {pair.language_a for pair in pairs} == {"en"}
    assert {pair.language_b for pair in pairs} == set(LANGUAGES) - {"en"}
    assert {pair.group_id for pair in pairs} == scenes["train"]
    by_name = {scene.name: scene for scene in all_scenes()}
    for pair in pairs:
        place = captions(by_name[pair.group_id], "en").index(pair.text_a)
        assert captions(by_name[pair.group_id], pair.language_b)[place] == pair.text_b


def test_description_counts_what_is_in_the_files(folder):
    description = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    assert description["settings"] == {"seed": 0, "images": IMAGES, "image_size": 48}
    assert set().union(*description["language_groups"].values()) == set(description["languages"]) == set(LANGUAGES)
    for split in ("train", "dev", "test"):
        counts = collections.Counter()
        for record in read_records(folder, IMAGE_TEXT, split):
            counts.update(record.languages)
        for language in LANGUAGES:
            assert description["languages"][language]["image_text"][split]["captions"] == counts[language]
        assert description["counts"]["image_text"][split]["captions"] == sum(counts.values())
    pairs = list(read_records(folder, TEXT_PAIRS, "train"))
    assert description["counts"]["text_pairs"]["train"] == len(pairs)
    assert description["languages"]["tg"]["text_pairs"]["train"] == sum(pair.language_b == "tg" for pair in pairs)


def test_same_seed_same_bytes(folder, tmp_path):
    again = build_shapes(tmp_path / "again", images=IMAGES)
    assert digests(again) == digests(folder)
    other = digests(build_shapes(tmp_path / "other", seed=1, images=IMAGES))
    assert all(other[name] != digest for name, digest in digests(folder).items())


def test_what_is_there_is_kept(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert build_shapes(folder, images=IMAGES) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(UserError, match="holds another data set.*'seed': 0.*instead of.*'seed': 3"):
        build_shapes(folder, seed=3, images=IMAGES)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and holds no data set"):
        build_shapes(foreign)
    assert (foreign / "thesis.txt").read_text() == "mine"
    (foreign / "dataset.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        build_shapes(foreign)


def test_an_interrupted_build_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mural_tf.demo.shapes._describe", interrupted)  # after all records are written
        with pytest.raises(KeyboardInterrupt):
            build_shapes(tmp_path / "shapes", images=20)
    assert not (tmp_path / "shapes").exists()
    killed = tmp_path / ".shapes.partial/image_text"  # what a killed build leaves
    killed.mkdir(parents=True)
    (killed / "train-00000-of-00009.tfrecord").write_bytes(b"half a record")
    made = build_shapes(tmp_path / "shapes", images=20)
    assert digests(made) == digests(build_shapes(tmp_path / "undisturbed", images=20)) and not killed.exists()
