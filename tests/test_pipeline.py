"""Batches: contents, determinism, the position they resume from, and what happens to records that cannot be used."""

import collections

import mule_data
import numpy as np
import pytest
import tensorflow as tf
import toy_data
from contract import losses_of

from mural_tf.data import records
from mural_tf.data.records import parse_image_text
from mural_tf.data.skipped import DAMAGED_RECORD, KINDS, SkippedRecords
from mural_tf.data.streams.epochs import _too_many, count_languages, unusable
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.errors import UserError
from mural_tf.text.language_words import WordTokenizer, build_words
from mural_tf.training.fit import rows_of_replicas


@pytest.fixture
def config(tmp_path):
    return augmented(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The first batches of `config`, of both streams: 128 captions in batches of 16, so that an epoch has 8."""
    return batches(augmented(tmp_path_factory.mktemp("whole")), 14)


def augmented(folder):
    config = toy_data.toy_config(toy_data.write_toy_data(folder))
    config.augmentation.update(dict(flip=True, rotation=10.0, zoom=0.1, color=0.5, erase=0.5, greyscale=0.2))
    return config


ONE = dict(streams=("image_text",))


def batches(config, count, **options):
    dataset = training_batches(config, toy_data.toy_tokenizer(), **options)
    return list(dataset.take(count).as_numpy_iterator())


def places_of(batch):
    """From where training goes on after a batch."""
    return {name.removesuffix("_place"): value[0] for name, value in batch.items() if name.endswith("_place")}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        if name != "data_wait_seconds" and not name.endswith("_tally"):  # counted from the start of each
            tf.nest.map_structure(np.testing.assert_array_equal, one[name], other[name])


def test_shapes_and_types(config, whole):
    batch = whole[0]
    assert batch["image"].shape == (16, toy_data.SIDE, toy_data.SIDE, 3) and batch["image"].dtype == np.uint8
    for name in ("caption", "text_a", "text_b"):
        assert {v.shape for v in batch[name].values()} == {(16, 8)}
    assert batch["caption"]["input_word_ids"][0, 0] == toy_data.RESERVED.index("[CLS]")
    dataset = training_batches(config, toy_data.toy_tokenizer(), **ONE)
    assert "text_a" not in dataset.element_spec
    assert b"PyFunc" not in dataset._as_serialized_graph().numpy()  # nothing of it calls Python


def test_the_same_seed_gives_the_same_batches(config, whole):
    for one, other in zip(whole, batches(config, 12)):
        assert_same(one, other)
    config.seed = 1
    assert not np.array_equal(batches(config, 1, **ONE)[0]["image"], whole[0]["image"])


def test_nothing_tunes_the_input(config):
    """A tuning thread makes the end of training wait; see data/records.py."""
    dataset = training_batches(config, toy_data.toy_tokenizer(), **ONE)
    assert dataset.options().autotune.enabled is False
    assert rows_of_replicas(dataset, 2).options().autotune.enabled is False


@pytest.mark.parametrize("after", [7, 8])  # in an epoch, and between two
def test_resumes_at_the_very_next_record(config, whole, after):
    last = whole[after - 1]
    for one, other in zip(whole[after:], batches(config, 6, places=places_of(last))):
        assert_same(one, other)


def test_an_epoch_holds_every_pair_once(whole):
    ids = [(i, c) for b in whole[:8] for i, c in zip(b["image_id"].tolist(), b["caption_id"].tolist())]
    assert len(set(ids)) == len(ids) == 128


def test_pairs_stay_together(whole):
    tokenizer = toy_data.toy_tokenizer()
    batch = whole[0]
    numbers = [
        [tokenizer.vocabulary[t] for t in row if tokenizer.vocabulary[t].startswith("##")]
        for row in batch["text_a"]["input_word_ids"]
    ]
    others = [
        [tokenizer.vocabulary[t] for t in row if tokenizer.vocabulary[t].startswith("##")]
        for row in batch["text_b"]["input_word_ids"]
    ]
    assert numbers == others and all(numbers)


def counts_of(batch, stream="image_text"):
    """The records read, and how many of each kind were skipped."""
    tally = batch[f"{stream}_tally"][0, 0]
    assert tally[1:, 0].sum() == tally[0, 1]
    return int(tally[0, 0]), {kind: int(count) for kind, count in zip(KINDS, tally[1:, 0]) if count}


def test_unusable_records_are_skipped_and_counted(tmp_path):
    images = toy_data.image_text_records(64)
    images[3].image = b"not an image"
    images[7].image = toy_data.picture(7)[:60]  # truncated PNG
    images[11].captions = ["", "fine"]
    images[12].captions = [b"\xff\xfe", "fine"]
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, images))
    path = records.list_files(tmp_path, records.IMAGE_TEXT, "train")[0]
    with open(path, "r+b") as file:  # the first record, two captions of image 0
        file.seek(40)
        file.write(b"????")
    config.data.max_skipped_fraction = 0.5
    whole = batches(config, 24, **ONE)
    # An epoch of 126 captions and a lost record has 120 that can be used: 7 batches and a half.
    kinds = {
        "record that does not agree with its checksum": 1,
        "image that does not decode": 4,  # two images with two captions each
        "empty caption": 1,
        "caption that is not UTF-8": 1,
    }
    read, skipped = counts_of(whole[14])  # two epochs
    assert skipped == {kind: 2 * count for kind, count in kinds.items()} and read == 2 * 127
    for batch, before in zip(whole[1:], whole):
        assert counts_of(batch)[0] - counts_of(before)[0] >= 16
    file, byte = whole[14]["image_text_tally"][0, 0, 1 + KINDS.index(DAMAGED_RECORD), 1:]
    assert (records.list_files(tmp_path, records.IMAGE_TEXT, "train")[file], byte) == (path, 0)
    last = whole[9]
    for one, other in zip(whole[10:], batches(config, 3, places=places_of(last), **ONE)):
        read, skipped = counts_of(other)  # of what comes after the position alone
        assert read == counts_of(one)[0] - counts_of(last)[0]
        assert sum(skipped.values()) == sum(counts_of(one)[1].values()) - sum(counts_of(last)[1].values())
        assert_same(one, other)


@pytest.mark.parametrize("broken", ["image", "caption", "half of the images"])
def test_too_many_unusable_records_stop_the_run(tmp_path, broken):
    images = toy_data.image_text_records(64)
    for place, image in enumerate(images):  # all of them: no batch would ever come
        if broken == "half of the images" and place % 2:
            continue
        image.image = b"junk" if broken != "caption" else image.image
        image.captions = ["", ""] if broken == "caption" else image.captions
    with pytest.raises(tf.errors.OpError) as error:
        batches(toy_data.toy_config(toy_data.write_toy_data(tmp_path, images)), 20, **ONE)
    stream, tally = unusable(error.value)
    expected = 128 if broken != "half of the images" else 64
    assert stream == "image_text" and tally[0, :2].tolist() == [128, expected]  # at the end of the first epoch


def test_an_epoch_of_nothing_usable_ends_the_run_whatever_the_bound(tmp_path):
    images = toy_data.image_text_records(16)
    for image in images:
        image.image = b"junk"
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, images))
    config.data.max_skipped_fraction = 1.0
    with pytest.raises(tf.errors.OpError) as error:
        batches(config, 1, **ONE)
    stream, tally = unusable(error.value)
    with pytest.raises(UserError, match="None of the 32 records read of the stream image_text can be used .32 x image"):
        SkippedRecords({stream: lambda file, byte: "place"}).stop(stream, tally, 1.0)


def test_a_missing_shard_is_no_smaller_split(tmp_path, caplog):
    toy_data.write_toy_data(tmp_path)
    (tmp_path / "image_text/train-00001-of-00002.tfrecord").unlink()
    with pytest.raises(UserError, match="train-00001-of-00002.tfrecord is missing, though the other files"):
        next(records.read_records(tmp_path, records.IMAGE_TEXT, "train"))
    assert len(list(records.read_records(tmp_path, records.IMAGE_TEXT, "train", skip_damaged=True))) == 32
    assert "Left out: 1 x file that is missing" in caplog.text


def test_the_bound_decides_beyond_doubt_before_the_end_of_an_epoch():
    """Read 10,000 of more records, bound 5%: 5 deviations of 500 records are 112."""
    for skipped, squares, epoch, too_many in [
        (600, 600, -1, False),  # 6%, perhaps
        (700, 700, -1, True),
        (700, 490_000, -1, False),  # one stretch of 700
        (501, 501, 10_000, True),  # the whole epoch is known
        (500, 500, 10_000, False),
        (600, 600, 10_001, False),  # an epoch of which a part was read before a restart
    ]:
        assert bool(_too_many(tf.constant([10_000, skipped, squares], tf.int64), epoch, 0.05)) == too_many


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_good_data_are_not_stopped_and_bad_data_are(tmp_path, seed):
    """4.5% of 3,000 images do not decode, under a bound of 5% and of 3%, whatever the order."""
    images = toy_data.image_text_records(1000)
    for image in images[::22]:
        image.image = b"junk"
    for image in images:
        image.captions, image.languages, image.caption_groups = image.captions[:1], ["en"], ["g"]
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, images))
    config.train.image_text_batch = 64
    config.seed = seed
    assert len(batches(config, 20, **ONE)) == 20
    config.data.max_skipped_fraction = 0.03
    with pytest.raises(tf.errors.OpError, match="unusable records: image_text 1000,46"):
        batches(config, 20, **ONE)


@pytest.mark.parametrize("fault", ["flip", "cut"])
def test_damage_in_a_file_costs_no_more_than_itself(tmp_path, fault):
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path))
    config.data.max_skipped_fraction = 0.9
    path = records.list_files(tmp_path, records.IMAGE_TEXT, "train")[0]
    with open(path, "r+b") as file:
        size = file.seek(0, 2)
        if fault == "cut":
            file.truncate(size // 2)
        else:
            file.seek(size // 10)
            byte = file.read(1)[0]
            file.seek(size // 10)
            file.write(bytes([byte ^ 1]))
    whole = batches(config, 20, **ONE)
    ids = {int(i) for batch in whole[:8] for i in batch["image_id"]}
    assert len(ids) == 63 if fault == "flip" else 45 < len(ids) < 64
    assert sum(counts_of(whole[8])[1].values()) in (1, 2)  # an epoch, perhaps the next one's record too


def test_the_first_records_may_be_garbage(tmp_path):
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path))
    config.data.max_skipped_fraction = 0.5
    files = records.list_files(tmp_path, records.IMAGE_TEXT, "train")
    with tf.io.TFRecordWriter(files[0]) as writer:
        for garbage in (b"\xff\xfe garbage", b"\x00", b"more"):
            writer.write(garbage)
    read, skipped = counts_of(batches(config, 8, **ONE)[-1])
    assert skipped["record that is not a tf.train.Example of the expected kind"] in (3, 6)
    with tf.io.TFRecordWriter(files[1]) as writer:
        writer.write(b"\xff\xfe garbage")
    with pytest.raises(UserError, match="does not hold records of the expected kind"):
        batches(config, 1, **ONE)


def test_the_vocabulary_leaves_damaged_records_out_as_training_does(tmp_path):
    images = toy_data.image_text_records(64)
    images[0].captions = [b"\xff", "ding v0"]
    toy_data.write_toy_data(tmp_path, images)
    first, second = records.list_files(tmp_path, records.IMAGE_TEXT, "train")
    with open(second, "r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    found = list(records.read_records(tmp_path, records.IMAGE_TEXT, "train", skip_damaged=True))
    assert 31 < len(found) < 62 and "image0" not in {record.image_id for record in found}
    with pytest.raises(UserError, match="not UTF-8"):
        list(records.read_records(tmp_path, records.IMAGE_TEXT, "train"))
    images[0].captions = ["thing w0", "ding v0"]
    toy_data.write_toy_data(tmp_path, images)
    with open(second, "r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    with pytest.raises(UserError, match="is damaged: 1 x stretch"):
        list(records.read_records(tmp_path, records.IMAGE_TEXT, "train"))


MULTI30K = ("en",) * 5 + ("de",) * 5 + ("fr", "cs")  # the languages of an image's captions


def captioned(count, languages=MULTI30K):
    """Images with so many captions in each language."""
    return [
        records.ImageTextRecord(f"image{i}", toy_data.picture(i), [f"w{i} {place} thing" for place in
                                range(len(languages))], languages, [""] * len(languages))
        for i in range(count)
    ]  # fmt: skip


def test_pairs_of_one_image_or_group_are_known_by_their_id(tmp_path):
    pairs = [records.TextPair(f"a{i}", "en", f"b{i}", "de", "g" if i < 3 else "") for i in range(8)]
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, captioned(4), pairs))
    config.train.text_text_batch = 8
    ids = batches(config, 1, streams=("text_text",))[0]["text_group_id"].tolist()
    assert sorted(map(ids.count, ids)) == [1] * 5 + [3] * 3  # pairs without a group are alone
    config.data.text_pairs = "co_captions"
    config.train.text_text_batch = 48
    ids = batches(config, 1, streams=("text_text",))[0]["text_group_id"].tolist()
    assert {ids.count(i) for i in ids} == {12} and len(set(ids)) == 4


def languages_of(batches):
    """The pairs of languages, and the pairs' images and texts."""
    names = np.array([*LANGUAGES])
    sides = [names[np.concatenate([batch[f"text_{side}_language_id"] for batch in batches])] for side in "ab"]
    return list(zip(*sides))


LANGUAGES = ("en", "de", "fr", "cs")


@pytest.fixture
def across(tmp_path):
    """A function from changes of `data` to a number of batches of co-captions in Multi30K's languages."""
    alone = records.ImageTextRecord("alone", b"", ["w1 thing", "w2 thing"], ["en", "en"], ["", ""])
    toy_data.write_toy_data(tmp_path, [*captioned(40), alone])
    texts = [(language, caption) for image in captioned(40) for language, caption in zip(MULTI30K, image.captions)]
    tokenizer = WordTokenizer(build_words(texts, LANGUAGES, 1000, False, False), LANGUAGES, max_length=8)

    def read(count, places=None, **changes):
        config = toy_data.toy_config(tmp_path)
        config.data.update({"text_pairs": "co_captions_across_languages", **changes})
        config.train.text_text_batch = 48  # an epoch has 480 pairs
        dataset = training_batches(config, tokenizer, places, streams=("text_text",))
        return list(dataset.take(count).as_numpy_iterator())

    return read


def test_every_pair_of_languages_has_the_same_chance(across):
    counts = collections.Counter(languages_of(across(40)))  # 1,920 pairs
    assert len(counts) == 12 and all(one != other for one, other in counts)
    # 160 expected of each ordered pair; the deviation of such a count is sqrt(1920 · 1/12 · 11/12) = 12.1
    assert max(abs(count - 160) for count in counts.values()) < 4 * 12.1
    counts = collections.Counter(languages_of(across(10, text_text_languages=("fr", "cs"))))
    assert {second for _, second in counts} == {"fr", "cs"} and len(counts) == 6


def test_pairs_across_languages_are_drawn_anew_and_repeat(across):
    whole = across(14)
    for one, other in zip(whole[4:], across(10, places_of(whole[3]))):
        assert_same(one, other)
    assert {batch["text_text_place"][0, 0, 0] for batch in whole} == {0, 1}
    drawn = [{*zip(*(np.concatenate([b[f"text_{side}_id"] for b in part]).tolist() for side in "ab"))}
             for part in (whole[:9], whole[10:])]  # fmt: skip
    assert len(drawn[1] - drawn[0]) > 100  # of 192 pairs of the second epoch
    groups = [len(set(batch["text_group_id"].tolist())) for batch in whole]
    assert min(groups) > 20  # an image's pairs do not stay together


def test_images_in_one_language_have_no_pair_across(tmp_path):
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, captioned(4, ("en", "en"))))
    config.data.text_pairs = "co_captions_across_languages"
    with pytest.raises(UserError, match="in different languages"):
        batches(config, 1, streams=("text_text",))
    toy_data.write_toy_data(tmp_path, captioned(4, ("en",)))
    config.data.text_pairs = "co_captions"
    with pytest.raises(UserError, match="images with several captions"):
        batches(config, 1, streams=("text_text",))


@pytest.mark.parametrize("method", ["mural", "labse", "mule"])
def test_captions_of_one_image_are_not_each_others_negatives(tmp_path, method):
    folder = mule_data.write(tmp_path)
    records.write_records(folder, records.IMAGE_TEXT, "train", captioned(1, ("en", "de", "en")), shards=2)
    config = mule_data.config(folder, method) if method == "mule" else toy_data.toy_config(folder, method)
    config.data.update(dict(text_pairs="co_captions", cache=True))
    tokenizer = mule_data.tokenizer() if method == "mule" else toy_data.toy_tokenizer()
    model = mule_data.build(config, tokenizer.vocabulary_size)
    (batch,) = training_batches(config, tokenizer, streams=("text_text",)).take(1)
    embeddings = {name: tf.math.l2_normalize(tf.random.normal([16, size]), axis=-1)
                  for name, (_, size) in model.embedding_shapes.items()}  # fmt: skip
    others = {"image_id": tf.range(16), "caption_id": tf.range(16), "caption_language_id": tf.zeros([16], tf.int32)}
    if method == "mule":
        embeddings["image"], others["image_id"] = embeddings["image"][:8], tf.range(8)
    assert losses_of(model, embeddings, {**others, **batch})["text_text"] < 1e-5


def test_img2dataset_records(tmp_path):
    with tf.io.TFRecordWriter(str(tmp_path / "00000.tfrecord")) as writer:
        for i in range(16):
            feature = {"jpg": toy_data.picture(i, kind="JPEG"), "txt": f"thing w{i}".encode(), "key": b"%05d" % i}
            feature = {k: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for k, v in feature.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    config = toy_data.toy_config(tmp_path, "align")
    config.data.format = "img2dataset"
    (batch,) = batches(config, 1, **ONE)
    assert len(set(batch["image_id"].tolist())) == 16


def test_languages_can_be_chosen_and_balanced(tmp_path):
    images = toy_data.image_text_records(64)
    for image in images[8:]:  # German for 8 of 64 pictures only
        image.captions, image.languages, image.caption_groups = image.captions[:1], ["en"], ["g"]
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, images))
    config.train.image_text_batch = 8
    german = {f"ding v{i}".encode() for i in range(8)}
    german = set(tf.strings.to_hash_bucket_fast(list(german), np.iinfo(np.int64).max).numpy().tolist())

    def share():
        ids = np.concatenate([b["caption_id"] for b in batches(config, 16, streams=("captions",))])
        return np.mean([i in german for i in ids.tolist()])

    config.data.image_text_languages = ("de",)
    assert share() == 1.0
    config.data.image_text_languages = ()
    config.data.language_temperature = 1e9  # as many German captions as English ones
    assert 0.4 < share() < 0.6
    config.data.image_text_languages = ("xx",)
    with pytest.raises(UserError, match="xx.*de, en"):
        batches(config, 1, **ONE)


def test_language_counts(tmp_path):
    toy_data.write_toy_data(tmp_path)
    files = records.list_files(tmp_path, records.IMAGE_TEXT, "train")
    assert count_languages(files, parse_image_text, "language") == {"de": 64, "en": 64}


def test_missing_data_is_reported(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        batches(toy_data.toy_config(tmp_path / "nowhere"), 1)
    with pytest.raises(UserError, match="No image_text records of split 'train'"):
        batches(toy_data.toy_config(tmp_path), 1)
