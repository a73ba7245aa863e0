"""The emoji benchmark, built by its own functions from tiny packages (`emoji_packages.py`), without a network."""

import collections
import hashlib
import io
import json

import numpy as np
import pytest
from emoji_packages import COLORS, CORE, KEYS, Mirror, write_tarball
from PIL import Image

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.data import records
from mural_tf.demo import emoji
from mural_tf.demo.emoji import (
    PACKAGES,
    TRAINING_STYLES,
    UNDER_RESOURCED,
    WELL_RESOURCED,
    EmojiName,
    Variant,
    build_emoji,
    draw,
    key_of_code_points,
    key_of_text,
    read_emoji_names,
)
from mural_tf.demo.npm_packages import Package, integrity_of

pytest.importorskip("resvg_py")


@pytest.fixture
def mirror(tmp_path):
    return Mirror(tmp_path / "mirror")


def builder(folder, mirror):
    def run(name, packages=mirror.packages, fetch=mirror, **variant):
        options = {"progress": False, "packages": packages, "fetch": fetch}
        return build_emoji(folder / name, folder / "cache", Variant(**variant), **options)

    return run


@pytest.fixture
def build(tmp_path, mirror, monkeypatch):
    monkeypatch.setattr(emoji, "TEST_IMAGES", 3)
    return builder(tmp_path, mirror)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The default build, for tests that only read."""
    folder = tmp_path_factory.mktemp("emoji")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(emoji, "TEST_IMAGES", 3)
        return builder(folder, Mirror(folder / "mirror"))("emoji")


def read(folder, kind, split):
    return list(records.read_records(folder, kind, split))


def bytes_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_training_images(built):
    """6 emoji x 3 styles; per image 9 well-resourced captions; 16 other languages caption one emoji in 3 styles."""
    train = read(built, "image_text", "train")
    styles = ("noto", "twemoji", "openmoji")
    assert sorted(r.image_id for r in train) == sorted(f"{s}/{k}" for s in styles for k in KEYS)
    for record in train:
        key = record.image_id.split("/")[1]
        assert list(record.captions) == [f"{language} {key}" for language in record.languages]
        assert set(record.caption_groups) == {f"{key}:name"}
        assert record.languages[:9] == list(WELL_RESOURCED)
    counts = collections.Counter(language for r in train for language in r.languages)
    assert counts == {**dict.fromkeys(WELL_RESOURCED, 18), **dict.fromkeys(UNDER_RESOURCED, 3)}
    by_emoji = collections.defaultdict(set)
    for record in train:
        by_emoji[record.image_id.split("/")[1]].add(tuple(record.languages))
    assert all(len(languages) == 1 for languages in by_emoji.values())  # the same in all three styles


def test_dev_and_test_images(built):
    test, dev = read(built, "image_text", "test"), read(built, "image_text", "dev")
    assert len(test) == 3 and len(dev) == 2
    ranked = sorted(KEYS[:-1], key=lambda key: hashlib.sha256(f"test\t{key}".encode()).digest())  # of any process
    assert {r.image_id for r in test} == {f"emojione/{k}" for k in ranked[:3]}
    assert sorted(r.image_id for r in test + dev) == sorted(f"emojione/{k}" for k in KEYS[:-1])
    for record in test + dev:
        assert record.languages == CORE  # every language's name of an image in one record
        assert record.captions == [f"{language} {record.image_id.split('/')[1]}" for language in CORE]


def test_more_styles_are_trained_on_where_they_draw_an_emoji_by_its_english_name(build, mirror, monkeypatch):
    """Of a set of icons as Iconify packs it, of 32 units; one drawing has a size of its own."""
    square = '<path fill="currentColor" d="M{0} {0}h{1}v{1}h-{1}z"/>'
    icons = {
        "en-1f600": {"body": square.format(8, 16).replace("currentColor", "#ff0000")},
        "en-1f9ea": {"body": square.format(4, 8).replace("currentColor", "#ff0000"), "width": 16, "height": 16},
        "en-unknown": {"body": square.format(8, 16)},
    }
    members = {"package/icons.json": json.dumps({"prefix": "x", "icons": icons, "width": 32, "height": 32}).encode()}
    tarball = mirror.folder / "icons-flat-1.tgz"
    write_tarball(tarball, members)
    package = Package("@icons/flat", "1", integrity_of(tarball), tarball.stat().st_size, "some licence")
    monkeypatch.setattr(emoji, "MORE_STYLES", (emoji.IconSet("flat", package),))
    folder = build("more", packages=[*mirror.packages, package], more_styles=True)
    train = {record.image_id: record for record in read(folder, "image_text", "train")}
    assert len(train) == 6 * 3 + 2
    for key in ("1f600", "1f9ea"):
        more = train[f"flat/{key}"]
        pixels = np.asarray(Image.open(io.BytesIO(more.image)))
        expected = np.full((64, 64, 3), 255)
        expected[16:48, 16:48] = (255, 0, 0)
        np.testing.assert_array_equal(pixels, expected)
        assert (more.captions, more.languages) == (train[f"noto/{key}"].captions, train[f"noto/{key}"].languages)
    assert emoji._icon_name("Flag: Woman’s hat!") == "flag-womans-hat"


def test_text_pairs(built):
    """24 languages x (6 emoji + "German"), and the territory in German only: 24 * 7 + 1 = 169."""
    pairs = read(built, "text_pairs", "train")
    assert len(pairs) == 169
    assert {p.language_a for p in pairs} == {"en"} and {p.language_b for p in pairs} == set(CORE) - {"en"}
    assert sum(p.group_id == "1f9ea:name" for p in pairs) == 24
    assert [(p.text_a, p.text_b, p.language_b) for p in pairs if p.group_id == "territories:DE"] == [
        ("D", "Land", "de")
    ]
    swahili = {(p.text_a, p.text_b) for p in pairs if p.language_b == "sw"}
    assert swahili == {*((f"en {k}", f"sw {k}") for k in KEYS), ("en German", "sw German")}


def test_names_and_emoji_of_the_test_are_trained_on_in_other_drawings(built):
    pairs = read(built, "text_pairs", "train")
    known = {text for pair in pairs for text in ((pair.language_a, pair.text_a), (pair.language_b, pair.text_b))}
    test = read(built, "image_text", "test")
    assert {name for record in test for name in zip(record.languages, record.captions)} <= known
    drawn = {record.image_id.split("/")[1] for record in read(built, "image_text", "train")}
    assert {record.image_id.split("/")[1] for record in test} <= drawn


def test_images_are_rgb_on_white(built):
    colors = {"noto": "google", "twemoji": "twitter", "openmoji": "openmoji", "emojione": "emojione"}
    for record in read(built, "image_text", "train") + read(built, "image_text", "test"):
        image = Image.open(io.BytesIO(record.image))
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (64, 64))
        pixels = np.asarray(image)
        expected = np.full((64, 64, 3), 255)
        expected[16:48, 16:48] = COLORS[colors[record.image_id.split("/")[0]]]
        np.testing.assert_array_equal(pixels, expected)


def test_description(built):
    description = json.loads((built / "dataset.json").read_text(encoding="utf-8"))
    assert description["settings"] == {"languages": "core", "seed": 0, "keyword_captions": False}
    assert description["packages"]["openmoji"] == {"version": "1", "license": "some licence"}
    assert description["language_groups"]["under-resourced"] == list(UNDER_RESOURCED)
    assert list(description["languages"]) == CORE
    # captions: 9 languages * 18 + 16 * 3 = 210; dev and test: images * 25 languages
    assert description["counts"] == {
        "image_text": {
            "train": {"images": 18, "captions": 210},
            "dev": {"images": 2, "captions": 50},
            "test": {"images": 3, "captions": 75},
        },
        "text_pairs": {"train": 169},
    }


def test_finished_build_needs_no_packages(build, mirror, tmp_path):
    folder = build("emoji")
    fetched = list(mirror.fetched)
    assert len(fetched) == 7
    (tmp_path / "cache").rename(tmp_path / "gone")
    assert build("emoji") == folder and mirror.fetched == fetched


def test_held_out_names_are_in_no_training_text_but_the_well_resourced(built, build, monkeypatch):
    monkeypatch.setattr(emoji, "HELD_OUT_SHARE", 0.4)  # one of three
    plain, held = built, build("held", held_out_names=True)
    description = json.loads((held / "dataset.json").read_text(encoding="utf-8"))
    (image,) = description["held_out_names"]
    key = image.removeprefix("emojione/")
    assert description["settings"]["held_out_names"] is True
    pairs = {folder: {(p.group_id, p.language_b) for p in read(folder, records.TEXT_PAIRS, "train")}
             for folder in (plain, held)}  # fmt: skip
    lost = {(group, language) for group, language in pairs[plain] if group == f"{key}:name"} - pairs[held]
    assert pairs[held] < pairs[plain] and pairs[plain] - pairs[held] == lost
    assert {language for _, language in lost} == set(UNDER_RESOURCED)
    for record in read(held, records.IMAGE_TEXT, "train"):
        if record.image_id.endswith(f"/{key}"):
            assert set(record.languages) == set(WELL_RESOURCED)
    names = [path for path in bytes_of(plain) if "test-" in path or "dev-" in path]
    assert [bytes_of(plain)[name] for name in names] == [bytes_of(held)[name] for name in names]


def test_one_language_of_those_that_a_picture_has(built, build):
    plain, single = built, build("single", one_language=True)
    known = {r.image_id: set(zip(r.languages, r.captions)) for r in read(plain, records.IMAGE_TEXT, "train")}
    chosen = {r.image_id: set(zip(r.languages, r.captions)) for r in read(single, records.IMAGE_TEXT, "train")}
    assert chosen.keys() == known.keys() and all(chosen[image] < known[image] for image in known)
    assert all(len({language for language, _ in captions}) == 1 for captions in chosen.values())
    of_emoji = {(image.split("/")[1], *captions) for image, captions in chosen.items()}
    assert len(of_emoji) == len({key for key, *_ in of_emoji})  # the same in every style
    others = [path for path in bytes_of(plain) if "image_text/train" not in path and not path.endswith(".json")]
    assert others and [bytes_of(plain)[name] for name in others] == [bytes_of(single)[name] for name in others]


def test_all_languages_are_those_that_name_half(build):
    folder = build("emoji", languages="all")
    description = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
    assert list(description["languages"]) == [*CORE, "aa", "sr-Latn"]
    assert description["languages"]["sr-Latn"]["text_pairs"] == {"train": 4}  # 3 emoji and "German"


def test_keyword_captions_are_a_group_of_their_own(build):
    train = read(build("emoji", keyword_captions=True), "image_text", "train")
    groups = collections.Counter(group.split(":")[1] for r in train for group in r.caption_groups)
    assert groups == {"name": 210, "keywords": 210}
    keywords = {c for r in train for c, g in zip(r.captions, r.caption_groups) if g.endswith(":keywords")}
    assert keywords == {"k, l"}


def test_same_seed_same_bytes_other_seed_same_test(built, build):
    first, again, other = built, build("b"), build("c", seed=1)
    assert bytes_of(first) == bytes_of(again)
    train = "image_text/train-00000-of-00004.tfrecord"
    assert len(bytes_of(first)) == 11 and bytes_of(first)[train] != bytes_of(other)[train]

    def images(folder, split):
        return {r.image_id for r in read(folder, "image_text", split)}

    assert images(first, "test") == images(other, "test") and images(first, "dev") == images(other, "dev")


def test_other_settings_never_overwrite(build):
    folder = build("emoji")
    before = bytes_of(folder)
    for options in ({"seed": 1}, {"languages": "all"}, {"keyword_captions": True}, {"held_out_names": True}):
        ((name, value),) = options.items()
        with pytest.raises(
            UserError, match=rf"holds another data set, with settings .* instead of {{'{name}': {value!r}}}"
        ):
            build("emoji", **options)
    assert bytes_of(folder) == before
    with pytest.raises(UserError, match="must be 'core' or 'all', not 'some'"):
        build("emoji", languages="some")


def test_keys_ignore_the_variation_selector():
    assert key_of_text("\u2764\ufe0f") == key_of_text("\u2764") == key_of_code_points("2764-FE0F") == "2764"
    assert key_of_code_points("0023-FE0F-20E3") == "0023-20e3"


def test_names_in_two_pieces_are_joined(tmp_path):
    tarballs = []
    for top, entries in (("annotations", {"\U0001f9d4": {"tts": ["man", "beard"]}}), ("annotationsDerived", {})):
        content = json.dumps({top: {"annotations": entries}}).encode()
        tarballs.append(tmp_path / f"{top}.tgz")
        write_tarball(tarballs[-1], {f"package/{top}/az/annotations.json": content})
    assert read_emoji_names(*tarballs) == {"az": {"1f9d4": EmojiName("man, beard", ())}}


def test_three_percent_of_what_a_language_names():
    """round(0.03 * 200) = 6; the draw differs between languages and seeds, and does not depend on other languages."""
    names = {language: {f"{i:04x}": EmojiName("n", ()) for i in range(200)} for language in ("en", "sw", "zu")}
    chosen = emoji.captioned_in_training(names, seed=0)
    assert {language: len(keys) for language, keys in chosen.items()} == {"en": 200, "sw": 6, "zu": 6}
    assert set(chosen["sw"]) != set(chosen["zu"])
    assert set(chosen["sw"]) != set(emoji.captioned_in_training(names, seed=1)["sw"])
    assert emoji.captioned_in_training({"sw": names["sw"]}, seed=0)["sw"] == chosen["sw"]


@pytest.mark.parametrize("mode", ["P", "LA", "RGBA"])
def test_transparency_of_every_mode_becomes_white(mode):
    image = Image.new("LA", (64, 64), (0, 0))
    image.paste((0, 255), (0, 0, 32, 64))  # left half black, right half transparent black
    image = image.convert("RGBA")
    image = image.quantize(4) if mode == "P" else image.convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    pixels = np.asarray(Image.open(io.BytesIO(draw(buffer.getvalue(), ".png"))))
    assert pixels[:, :32].max() == 0 and pixels[:, 32:].min() == 255


def test_half_transparent_svg_blends_with_white():
    """50% of red on white: (255, 127.5, 127.5)."""
    svg = b'<svg viewBox="0 0 72 72" xmlns="http://www.w3.org/2000/svg"><rect width="72" height="72" fill="#f00" '
    pixels = np.asarray(Image.open(io.BytesIO(draw(svg + b'opacity="0.5"/></svg>', ".svg"))))
    assert np.abs(pixels - np.array([255, 127.5, 127.5])).max() <= 1.5


def test_pins_cover_every_style():
    pinned = {package.name for package in PACKAGES}
    assert {style.package for style in TRAINING_STYLES} | {"emojione"} < pinned and len(pinned) == 7
    more = [icons.package for icons in emoji.MORE_STYLES]
    assert all(len(p.integrity) == len("sha512-") + 88 and p.size > 0 and p.license for p in [*PACKAGES, *more])


@pytest.mark.parametrize("name", ["everything", "core_", "core_nothing"])
def test_an_unknown_build(name):
    config = base_config()
    config.data.emoji = name
    with pytest.raises(UserError, match=f"Unknown data.emoji '{name}': expected one of core, all, core_names"):
        emoji.build(config.data)
