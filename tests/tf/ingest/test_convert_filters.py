"""The filters of ALIGN and ETCL, near-duplicates of evaluation images, and translate-train."""

import bz2
import io
import json
import random

import numpy as np
import PIL.Image
import pytest
from convert_data import images_in, pairs_in, reported, run
from smooth_pictures import image_bytes, picture

from mural_lite.errors import UserError
from mural_lite.pictures import BadImage, open_image
from mural_tf.data import records
from mural_tf.ingest import rows
from mural_tf.ingest.convert import describe_input
from mural_tf.ingest.decide import TABLES, Decided, Request, decide
from mural_tf.ingest.filters import is_near, perceptual_hash, usable_bytes
from mural_tf.ingest.source import FILTERS, Filters, Settings


def write_captions(folder, rows):
    """Rows are (image name, caption)."""
    path = folder / "captions.tsv"
    path.write_text("".join(f"{name}\t{caption}\n" for name, caption in rows), encoding="utf-8")
    return f"captions:{path},images={folder}"


def test_numbers_of_the_papers():
    align = Filters(200, 3.0, 1000, 10, 3, 20, 0)
    etcl = Filters(200, 3.0, 100, 10, 3, 100, 1000)
    assert FILTERS["align"] == align and FILTERS["etcl"] == etcl


def test_sizes_of_images(tmp_path):
    sizes = {"at bound": (200, 300), "above": (201, 300), "three": (603, 201)}
    sizes |= {"longer": (604, 201), "taller": (201, 604)}
    for name, size in sizes.items():
        (tmp_path / f"{name}.jpg").write_bytes(image_bytes(1, *size))
    source = write_captions(tmp_path, [(f"{name}.jpg", f"three words {name}") for name in sizes])
    output = run([source], tmp_path / "out", filters=FILTERS["etcl"])
    assert [record.image_id for record in images_in(output)] == ["above.jpg", "three.jpg"]
    assert reported(output, "left_out") == {
        "image whose shorter side is not above 200 pixels": 1,
        "image of an aspect ratio above 3": 2,
    }


def test_lengths_of_texts(tmp_path):
    (tmp_path / "a.jpg").write_bytes(image_bytes(1))
    texts = [
        "one two",
        "one two three",
        " ".join("w" * 100),
        " ".join("w" * 101),
        "a b " + "x" * 996,
        "a b " + "x" * 997,
    ]
    source = write_captions(tmp_path, [("a.jpg", text) for text in texts])
    filters = Filters(min_words=3, max_words=100, max_characters=1000)
    output = run([source], tmp_path / "out", filters=filters)
    assert [record.captions[0] for record in images_in(output)] == [texts[1], texts[2], texts[4]]
    assert reported(output, "left_out") == {
        "caption of fewer than 3 words": 1,
        "caption of more than 100 words": 1,
        "caption of more than 1000 characters": 1,
    }


def test_frequent_texts_and_images(tmp_path):
    for n in range(6):
        (tmp_path / f"{n}.jpg").write_bytes(image_bytes(n))
    rows = [(f"{n}.jpg", "on three images") for n in range(3)]  # at the bound of 3
    rows += [(f"{n}.jpg", "on four images") for n in range(4)]
    rows += [("4.jpg", f"text {n}") for n in range(5)]  # at the bound of 5
    rows += [("5.jpg", f"text {n}") for n in range(6)]
    rows += [("0.jpg", "on three images")] * 3  # repeats do not count as further images
    filters = Filters(max_images_per_text=3, max_texts_per_image=5)
    output = run([write_captions(tmp_path, rows)], tmp_path / "out", filters=filters)
    kept = [(record.image_id, record.captions[0]) for record in images_in(output)]
    assert sorted(kept) == sorted(rows[:3] + rows[7:12] + rows[18:])
    # "on four images" 4 times; the six texts of image 5, five of which are also on image 4, go with the image
    assert reported(output, "left_out") == {"text on more than 3 images": 4, "image with more than 5 texts": 6}


def test_near_duplicates_equal_a_search_bit_by_bit():
    generator = np.random.default_rng(0)
    known = generator.integers(0, 1 << 63, 50).astype(np.uint64)
    for flips in (0, 1, 4, 5, 16, 17, 30):
        for value in map(int, known[:20]):
            for bit in generator.choice(64, flips, replace=False):
                value ^= 1 << int(bit)
            nearest = min(bin(value ^ int(other)).count("1") for other in known)
            for distance in (0, 1, 4, 16):
                assert is_near(known, value, distance) == (nearest <= distance)


def test_evaluation_images_are_found_in_other_sizes_and_qualities(tmp_path):
    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    for n in range(3):
        (evaluation / f"{n}.png").write_bytes(image_bytes(n, 300, 300, "PNG"))
    variants = {"same.jpg": (0, 300, 300, 95), "smaller.jpg": (1, 90, 90, 50), "wider.jpg": (2, 600, 500, 75)}
    variants |= {f"other{n}.jpg": (n, 300, 300, 90) for n in range(10, 30)}
    for name, (seed, width, height, quality) in variants.items():
        (tmp_path / name).write_bytes(image_bytes(seed, width, height, quality=quality))
    source = write_captions(tmp_path, [(name, name) for name in variants])
    output = run([source], tmp_path / "out", evaluation_images=(str(evaluation),))
    assert [record.image_id for record in images_in(output)] == [name for name in variants if "other" in name]
    (tmp_path / "list.txt").write_text("evaluation/0.png\n")
    output = run([source], tmp_path / "by_list", evaluation_images=(str(tmp_path / "list.txt"),))
    assert reported(output, "left_out") == {"image that looks like an evaluation image": 1}
    (evaluation / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="evaluation image .*broken.png cannot be read"):
        run([source], tmp_path / "no", evaluation_images=(str(evaluation),))


def test_perceptual_hash_is_imagehash():
    import imagehash

    noise = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, [50, 70, 3], np.uint8))
    flat = PIL.Image.new("RGB", (40, 40), (9, 90, 200))
    for image in (*(picture(seed, 64 + seed, 64) for seed in range(20)), noise, flat):
        assert f"{perceptual_hash(image):016x}" == str(imagehash.phash(image))


def test_translations_become_captions_of_the_same_group(tmp_path):
    for n in range(2):
        (tmp_path / f"{n}.jpg").write_bytes(image_bytes(n))
    source = write_captions(tmp_path, [("0.jpg", "A man on a bike, in 2012!"), ("1.jpg", "Nobody translated this.")])
    lines = [
        {"rec_num": 1, "src_lang": "en", "trg_lang": language, "caption_tokenized": "a man on a bike , in # !",
         "translation_tokenized": text}
        for language, text in [("de", "ein Mann auf einem Fahrrad"), ("iw", "גבר על אופניים"), ("fr", "un homme")]
    ]  # fmt: skip
    google = tmp_path / "cc3m_mt_train.jsonl.bz2"
    google.write_bytes(bz2.compress("\n".join(json.dumps(line) for line in lines).encode()))
    table = tmp_path / "more.tsv"
    table.write_text("A man on a bike, in 2012!\tjp\t男\n", encoding="utf-8")
    output = run(
        [source], tmp_path / "out", translations=(str(google), str(table)), translation_languages=("de", "he", "ja")
    )
    first, second = images_in(output)
    assert list(zip(first.languages, first.captions)) == [
        ("en", "A man on a bike, in 2012!"), ("de", "ein Mann auf einem Fahrrad"), ("he", "גבר על אופניים"),
        ("ja", "男"),
    ]  # fmt: skip
    assert len(set(first.caption_groups)) == 1 and first.caption_groups[0]
    assert second.captions == ["Nobody translated this."]
    table.write_text("two\tcolumns\n")
    with pytest.raises(UserError, match="more.tsv:1: expected English caption, language and translation"):
        run([source], tmp_path / "no", translations=(str(table),))


def test_text_pairs_translate_word_for_word_between_any_languages(tmp_path):
    (tmp_path / "0.jpg").write_bytes(image_bytes(0))
    pairs = [("zwei Hunde", "de", "two dogs", "en"), ("two dogs", "en", "deux chiens", "fr"),
             ("Zwei Hunde", "de", "2 dogs", "en")]  # fmt: skip
    records.write_records(tmp_path / "pairs", records.TEXT_PAIRS, "train", [records.TextPair(*pair) for pair in pairs])
    captions = ["two dogs", "zwei Hunde", "ein Haus", "2 dogs"], ["en", "de", "de", "en"], ["", "", "", "own"]
    image = records.ImageTextRecord("i", image_bytes(0), *captions)
    records.write_records(tmp_path / "data", records.IMAGE_TEXT, "train", [image])
    (found,) = images_in(run([f"records:{tmp_path}/data"], tmp_path / "out", translations=(str(tmp_path / "pairs"),)))
    assert list(zip(found.languages, found.captions, found.caption_groups)) == [
        ("en", "two dogs", "i:0"), ("fr", "deux chiens", "i:0"), ("de", "zwei Hunde", "i:0"),  # joins the group
        ("de", "ein Haus", ""), ("en", "2 dogs", "own"), ("de", "Zwei Hunde", "own"),
    ]  # fmt: skip


def test_images_are_copied_unless_they_have_to_be_encoded():
    for image_format in ("JPEG", "PNG"):
        content = image_bytes(0, 100, 80, image_format)
        opened = open_image(content)
        assert opened.size == (100, 80) and usable_bytes(content, opened) is content
    content = image_bytes(0, 400, 300)
    small = usable_bytes(content, open_image(content), image_size=100)
    assert open_image(small).size == (133, 100)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    lying = image_bytes(0, 100, 80, exif=exif)
    assert PIL.Image.open(io.BytesIO(usable_bytes(lying, open_image(lying)))).size == (80, 100)
    difference = np.asarray(PIL.Image.open(io.BytesIO(small)).convert("RGB"), float) - np.asarray(picture(0, 133, 100))
    assert np.abs(difference).mean() < 4
    transparent = io.BytesIO()
    PIL.Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(transparent, "WEBP", lossless=True)
    encoded = usable_bytes(transparent.getvalue(), open_image(transparent.getvalue()))
    assert np.asarray(PIL.Image.open(io.BytesIO(encoded))).min() > 250  # transparent is white


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "empty"), (b"<html>404</html>", "HTML page"), (image_bytes(0)[:-300], "cut off"),
     (image_bytes(0, image_format="PNG")[:-12], "cut off"),
     (image_bytes(0, image_format="WEBP")[:200], "decode|not an image")],
)  # fmt: skip
def test_images_that_cannot_be_used(content, problem):
    with pytest.raises(BadImage, match=problem):
        usable_bytes(content, open_image(content))


def naive(found, which):
    """What stays of (image, texts) and pairs, in order, by the rule itself."""
    images, texts, pairs, kept = set(), set(), set(), []
    for image, captions in found:
        if which in ("image", "both") and image is not None and image in images:
            continue
        images.add(image)
        stay = []
        for caption in captions:
            key = (image, caption) if which == "pair" and image is not None else caption
            seen = pairs if which == "pair" else texts
            if which in ("text", "both", "pair") and key in seen:
                continue
            if which != "image":
                seen.add(key)
            stay.append(caption)
        if stay:
            kept.append((image, stay))
    return kept


@pytest.mark.parametrize("which, shards, inline", [
    ("text", 7, True), ("image", 7, True), ("both", 2, False), ("pair", 2, False), ("both", 7, True), ("pair", 1, True),
])  # fmt: skip
def test_duplicates_as_a_dictionary_finds_them(tmp_path, which, shards, inline):
    """Records with images inside, and captions of files, over several units; the first of each stays."""
    draw = random.Random(shards)
    found = [(draw.randrange(12), [f"text number {draw.randrange(40)}" for _ in range(draw.choice([1, 1, 3]))])
             for _ in range(60)]  # fmt: skip
    (tmp_path / "images").mkdir()
    for n in range(12):
        (tmp_path / "images" / f"{n}.jpg").write_bytes(image_bytes(n))
    sources = []
    for shard in range(shards):
        mine = found[len(found) * shard // shards : len(found) * (shard + 1) // shards]
        if inline:
            made = [
                records.ImageTextRecord(f"{shard}-{i}", image_bytes(image), texts, ["en"] * len(texts), texts)
                for i, (image, texts) in enumerate(mine)
            ]
            folder = tmp_path / f"set{shard}"
            records.write_records(folder, records.IMAGE_TEXT, "train", made)
            sources.append(f"records:{folder}")
        else:
            mine = [(image, [text]) for image, texts in mine for text in texts]
            lines = "".join(f"{image}.jpg\t{text}\n" for image, (text,) in mine)
            (tmp_path / f"{shard}.tsv").write_text(lines)
            sources.append(f"captions:{tmp_path}/{shard}.tsv,images={tmp_path}/images")
    if not inline:
        found = [(image, [text]) for image, texts in found for text in texts]
    settings = {"unit_bytes": 10**9, "shard_megabytes": 10**6}  # one shard, so that the order is that of the files
    output = run(sources, tmp_path / "out", drop_duplicates=which, **settings)
    content = {image_bytes(n): n for n in range(12)}
    kept = sorted((content[record.image], list(record.captions)) for record in images_in(output))
    assert kept == sorted(naive(found, which))
    smaller = run(sources, tmp_path / "small", drop_duplicates=which, unit_bytes=100_000, shard_megabytes=0)
    same = sorted((content[record.image], list(record.captions)) for record in images_in(smaller))
    assert same == kept


def test_a_conversion_is_another_one_if_files_of_its_settings_change(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a cat\teine Katze\na dog\tein Hund\n")
    (tmp_path / "excluded.txt").write_text("a cow\n")
    source = f"pairs:{tmp_path}/pairs.tsv,language_b=de"
    settings = {"exclude_texts": (f"{tmp_path}/excluded.txt",)}
    assert len(pairs_in(run([source], tmp_path / "out", **settings))) == 2
    (tmp_path / "excluded.txt").write_text("a cow\na cat\n")
    with pytest.raises(UserError, match="holds another data set, with files_of_settings .*'exclude_texts'"):
        run([source], tmp_path / "out", **settings)
    assert len(pairs_in(run([source], tmp_path / "other", **settings))) == 1
    assert "files_of_settings" not in describe_input([], Settings())
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_bytes(image_bytes(0))
    records.write_records(tmp_path / "set", records.TEXT_PAIRS, "train", [records.TextPair("a", "en", "b", "de")])
    settings = Settings(evaluation_images=(f"{tmp_path}/images",), translations=(f"{tmp_path}/set",))
    digests = [describe_input([], settings)["files_of_settings"]]
    (tmp_path / "images/b.jpg").write_bytes(image_bytes(1))
    digests.append(describe_input([], settings)["files_of_settings"])
    records.write_records(tmp_path / "set", records.TEXT_PAIRS, "train", [records.TextPair("a", "en", "bb", "de")])
    digests.append(describe_input([], settings)["files_of_settings"])
    assert len({digest["evaluation_images"] for digest in digests}) == 2
    assert [digest["translations"] == digests[0]["translations"] for digest in digests] == [True, True, False]


@pytest.mark.parametrize("which", ["text", "both"])
def test_a_picture_that_is_left_out_holds_no_text(tmp_path, which):
    """Within a unit, and over several: the first is small, the second no picture, the third cut off."""
    (tmp_path / "small.jpg").write_bytes(image_bytes(0, 100, 100))
    (tmp_path / "broken.jpg").write_bytes(b"<html>404</html>")
    (tmp_path / "large.jpg").write_bytes(image_bytes(1, 300, 300))
    (tmp_path / "cut.jpg").write_bytes(image_bytes(2, 300, 300)[:-2000])
    names = ("small", "broken", "cut", "large")
    source = write_captions(tmp_path, [(f"{name}.jpg", "a red heart") for name in names])
    sources = []
    for name in names:
        (tmp_path / f"of {name}").mkdir()
        (tmp_path / f"of {name}" / "a.tsv").write_text(f"{name}.jpg\ta red heart\n")
        sources.append(f"captions:{tmp_path}/of {name}/a.tsv,images={tmp_path}")
    settings = {"drop_duplicates": which, "filters": Filters(above_shorter_side=200), "max_skipped_fraction": 1.0}
    for number, named in enumerate(([source], sources[::-1], [source, *sources])):
        output = run(named, tmp_path / str(number), **settings)
        assert [record.image_id for record in images_in(output)] == ["large.jpg"]


def test_frequent_texts_and_images_are_an_oracles(tmp_path):
    draw = random.Random(0)
    drawn = [(draw.randrange(40), draw.randrange(40)) for _ in range(600)]
    for job in range(3):
        with rows.write(tmp_path, "texts", job, TABLES["texts"]) as add:
            list(map(add, drawn[200 * job : 200 * job + 200]))
    request = Request([], [], Settings(filters=Filters(max_images_per_text=13, max_texts_per_image=12)), tmp_path)
    decide(request, request.stages()[0])
    decided = Decided(tmp_path, 0, 0, request.names())
    for frequent, bound, side in ((decided.frequent_texts, 13, 0), (decided.frequent_images, 12, 1)):
        others = {key: {pair[1 - side] for pair in drawn if pair[side] == key} for key in range(40)}
        assert frequent.tolist() == [key for key in range(40) if len(others[key]) > bound] and 0 < len(frequent) < 40


@pytest.mark.parametrize("which", ["text", "both", "pair"])
def test_duplicate_pairs(tmp_path, which):
    """Of text pairs, in either direction; the same texts in other languages are another pair."""
    (tmp_path / "a.tsv").write_text("one\teins\ntwo\tzwei\none\teins\n")
    (tmp_path / "b.tsv").write_text("eins\tone\ndrei\tthree\n")
    (tmp_path / "c.tsv").write_text("one\teins\n")
    sources = [
        f"pairs:{tmp_path}/a.tsv,language_b=de", f"pairs:{tmp_path}/b.tsv,language_a=de,language_b=en",
        f"pairs:{tmp_path}/c.tsv,language_b=nl",
    ]  # fmt: skip
    output = run(sources, tmp_path / "it's", drop_duplicates=which)  # a name that SQL takes in quotes
    found = sorted((pair.language_a, pair.text_a, pair.language_b) for pair in pairs_in(output))
    assert found == [("de", "drei", "en"), ("en", "one", "de"), ("en", "one", "nl"), ("en", "two", "de")]
    left = json.loads((output / "dataset.json").read_text())["left_out"]
    assert left == {"duplicate pair": {"count": 2, "first": f"{tmp_path}/a.tsv:3"}}
    assert len(pairs_in(run(sources, tmp_path / "images", drop_duplicates="image"))) == 6
