"""Batches: contents, determinism, the position they resume from, and what happens to records that cannot be used."""

import ast
import collections
import json
import pathlib
import time

import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.errors import UserError
from mural_lite.skipped import DAMAGED_RECORD, UNREADABLE_IMAGE
from mural_tf.data import records
from mural_tf.data.records import parse_image_text
from mural_tf.data.skipped_records import SkippedRecords
from mural_tf.data.streams import pipeline
from mural_tf.data.streams.epochs import (
    END_OF_EPOCH,
    EPOCH,
    _copies_per_language,
    _place_block,
    _too_many,
    balanced_languages,
    count_languages,
    endless_items,
    start_of,
    unusable,
    usable_items,
    without_languages,
)
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.data.streams.stream import Texts
from mural_tf.training.fit import rows_of_replicas


@pytest.fixture
def config(tmp_path):
    return augmented(tmp_path)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """The batches of both streams of `augmented`."""
    return training_batches(augmented(tmp_path_factory.mktemp("whole")), toy_data.toy_tokenizer())


@pytest.fixture(scope="module")
def whole(dataset):
    """The first batches: 128 captions in batches of 16, so that an epoch has 8."""
    return list(dataset.take(14).as_numpy_iterator())


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


def test_no_order_depends_on_time():
    """What runs in parallel is told to keep its order; a test of batches would seldom see another."""
    calls = []
    for path in pathlib.Path(pipeline.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if "num_parallel_calls" in keywords:
                    calls.append(keywords.get("deterministic"))
    assert len(calls) > 3 and set(calls) == {"True"}


def test_shapes_and_types(dataset, whole):
    batch = whole[0]
    assert batch["image"].shape == (16, toy_data.SIDE, toy_data.SIDE, 3) and batch["image"].dtype == np.uint8
    for name in ("caption", "text_a", "text_b"):
        assert {v.shape for v in batch[name].values()} == {(16, 8)}
    assert batch["caption"]["input_word_ids"][0, 0] == toy_data.RESERVED.index("[CLS]")
    assert b"PyFunc" not in dataset._as_serialized_graph().numpy()  # nothing of it calls Python


def test_nothing_tunes_the_input(dataset):
    """A tuning thread makes the end of training wait; see data/records.py."""
    assert dataset.options().autotune.enabled is False
    assert rows_of_replicas(dataset, 2).options().autotune.enabled is False


def test_sizes_are_known_beforehand(dataset):
    """As TPUs need them, also those of a worker's part."""
    for batches in (dataset, rows_of_replicas(dataset, 4, 0, 2)):
        assert all(None not in part.shape for part in tf.nest.flatten(batches.element_spec))


def test_resumes_at_the_very_next_record(config, whole):
    """In an epoch; at other places: test_epochs.py."""
    for one, other in zip(whole[7:], batches(config, 6, places=places_of(whole[6]), **ONE)):
        assert_same({name: one[name] for name in other}, other)  # of the other stream: test_epochs.py


@pytest.mark.parametrize("window,taken", [(8, 2), (100, 1)])
def test_the_next_epoch_fills_while_the_last_window_is_used(tmp_path, window, taken):
    """So that training does not wait at the end of an epoch of 12 records."""
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, count=12))
    config.data.shuffle_buffer = window
    parsed = []

    def parse(serialized):
        count = tf.py_function(lambda: parsed.append(1) or 1, [], tf.int64)
        with tf.control_dependencies([count]):
            return {name: values[:1] for name, values in parse_image_text(serialized).items()}

    files = records.list_files(config.data.directory, records.IMAGE_TEXT, "train")
    items = endless_items(files, parse, config.data, 5, start_of(0))
    iterator = iter(records.untuned(items))  # which puts no prefetching in
    for _ in range(taken):
        places, _ = next(iterator)
    assert places[0] == window * (taken - 1)
    until = time.monotonic() + 60
    while len(parsed) < 24 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(parsed) >= 24


def test_captions_keep_no_pictures_in_memory(tmp_path):
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path))
    files = records.list_files(config.data.directory, records.IMAGE_TEXT, "train")
    record = tf.constant(next(serialized for _, serialized in records.read_serialized(files[0], None)))
    kept = {}
    for name in ("captions", "image_text"):
        stream = pipeline.stream_of(name, config, Texts(toy_data.toy_tokenizer(), "longest"))
        kept[name] = stream.read(record).keys()
    assert kept["image_text"] - kept["captions"] == {"image"}


def looked_at(problems, bound):
    """The usable items of epochs of records with these problems, "" where there is none, as `usable_items` has them."""
    epoch = [*problems, END_OF_EPOCH]
    items = {"problem": epoch, **dict.fromkeys(("file", "byte", "lost"), np.ones(len(epoch), np.int64))}
    items["in_epoch"] = np.full(len(epoch), len(problems))
    places = np.arange(len(epoch)) + np.arange(100)[:, None] * EPOCH  # of a hundred epochs
    items = {name: np.tile(values, 100) for name, values in items.items()}
    items = tf.data.Dataset.from_tensor_slices((places.ravel(), (np.full(places.size, ""), items))).batch(32)
    return records.untuned(usable_items(items, None, "image_text", bound)).as_numpy_iterator()


def stopped(problems, bound):
    """The stream and the tally with which too many unusable records end a run."""
    with pytest.raises(tf.errors.OpError) as error:
        for _ in looked_at(problems, bound):
            pass
    return unusable(error.value)


def test_an_epoch_of_nothing_usable_ends_the_run_whatever_the_bound():
    stream, tally = stopped([UNREADABLE_IMAGE] * 32, 1.0)
    with pytest.raises(UserError, match="None of the 32 records read of the stream image_text can be used .32 x image"):
        SkippedRecords({stream: lambda file, byte: "place"}).stop(stream, tally, 1.0)
    with pytest.raises(UserError, match="Too many unusable records: 16 of 32 of the stream image_text skipped"):
        SkippedRecords({stream: lambda file, byte: "place"}).stop(*stopped([UNREADABLE_IMAGE, ""] * 16, 0.4), 0.4)


def test_good_items_are_not_stopped_and_bad_ones_are():
    """4.6% of 1,000 are unusable, under a bound of 5% and of 4%."""
    problems = np.random.default_rng(0).permutation([UNREADABLE_IMAGE] * 46 + [""] * 954)
    read = 0
    for block in looked_at(problems, 0.05):
        read += len(block["position"])
        if read > 3 * 954:
            break
    assert read > 3 * 954
    assert stopped(problems, 0.04)[1][0, :2].tolist() == [1000, 46]


def test_a_missing_shard_is_no_smaller_split(tmp_path, caplog):
    toy_data.write_toy_data(tmp_path)
    (tmp_path / "image_text/train-00001-of-00002.tfrecord").unlink()
    with pytest.raises(UserError, match="train-00001-of-00002.tfrecord is missing, though the other files"):
        next(records.read_records(tmp_path, records.IMAGE_TEXT, "train"))
    assert len(list(records.read_records(tmp_path, records.IMAGE_TEXT, "train", skip_damaged=True))) == 32
    assert "Left out: 1 x file that is missing" in caplog.text


def test_the_bound_is_a_share_of_an_epoch():
    """Of 5%, with an epoch of 10,000: 500, and 750 before it ends."""
    for read, skipped, is_end, too_many in [
        (5000, 600, False, False),  # it may have no others
        (5000, 751, False, True),
        (10_000, 501, True, True),
        (10_000, 500, True, False),
        (5000, 400, True, False),  # of an epoch of which a part was read before a restart
        (40_000, 2000, True, False),  # several epochs
        (40_000, 2001, True, True),
    ]:
        assert bool(_too_many(tf.constant([read, skipped, 10_000], tf.int64), is_end, 0.05)) == too_many


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
    ids = text_pairs_of(config)["text_group_id"].numpy().tolist()
    assert sorted(map(ids.count, ids)) == [1] * 5 + [3] * 3  # pairs without a group are alone
    config.data.text_pairs = "co_captions"
    config.train.text_text_batch = 48
    ids = text_pairs_of(config)["text_group_id"].numpy().tolist()
    assert {ids.count(i) for i in ids} == {12} and len(set(ids)) == 4


def text_pairs_of(config):
    return toy_data.stream_batch(config, toy_data.toy_tokenizer(), "text_text")


@pytest.fixture
def mostly_english(tmp_path):
    """German for 8 of 64 pictures only."""
    images = toy_data.image_text_records(64)
    for image in images[8:]:
        image.captions, image.languages, image.caption_groups = image.captions[:1], ["en"], ["g"]
    config = toy_data.toy_config(toy_data.write_toy_data(tmp_path, images))
    config.train.image_text_batch = 8
    return config


def test_copies_choose_and_balance_languages(mostly_english):
    config, streams = mostly_english, ("image_text", "captions", "views")
    config.data.image_text_languages = ("de",)
    made = [toy_data.stream_of(config, toy_data.toy_tokenizer(), stream) for stream in streams]
    assert [(stream.languages, stream.language_key) for stream in made] == [(("de",), "language")] * 3
    files = records.list_files(config.data.directory, records.IMAGE_TEXT, "train")
    counts = count_languages(files, parse_image_text, "language")
    assert counts == {"de": 8, "en": 64}

    def copies(languages, temperature):
        table = _copies_per_language(counts, "language", languages, temperature)
        return table.lookup(tf.constant(["de", "en", "xx"])).numpy().tolist()

    assert copies(("de",), 1.0) == [1.0, 0.0, 0.0]
    assert copies((), 1.0) == [1.0, 1.0, 0.0]  # each once
    assert copies((), 3.0) == pytest.approx([4.0, 1.0, 0.0])  # (64 / 8) ** (2 / 3)
    assert copies((), 1e9) == pytest.approx([8.0, 1.0, 0.0])  # as many German captions as English ones
    with pytest.raises(UserError, match="xx.*de, en"):
        without_languages([counts], "language", ("de", "xx"))


def test_languages_are_counted_once_and_not_at_all_where_they_are_described(mostly_english, capsys):
    config = mostly_english
    config.data.language_temperature = 2.0
    folder = pathlib.Path(config.data.directory)

    def passes():
        """How often two starts read the data to count."""
        for _ in range(2):
            training_batches(config, toy_data.toy_tokenizer(), streams=("image_text",))
        return capsys.readouterr().out.count("files to count languages")

    assert passes() == 1
    config.data.image_text_languages = ("de",)
    assert passes() == 1  # other settings
    toy_data.write_toy_data(folder, toy_data.image_text_records(8))
    assert passes() == 1  # other data
    config.data.image_text_languages = ()
    shards = {}
    for path in folder.glob("image_text/train-*"):
        shards[f"image_text/{path.name}"] = {"bytes": path.stat().st_size, "languages": {"en": 4, "de": 4}}
    (folder / "dataset.json").write_text(json.dumps({"shards": shards}))
    assert passes() == 0


def test_text_pairs_are_balanced_by_both_languages(tmp_path):
    """English comes second, first, and both: of 12, 3 + 3 and 2 pairs; the twelve keep one copy each."""
    counts = {("de", "en"): 12, ("am", "en"): 3, ("en", "am"): 3, ("en", "sw"): 2}
    languages = [pair for pair, count in counts.items() for _ in range(count)]
    pairs = [records.TextPair(f"a{i}", first, f"b{i}", second) for i, (first, second) in enumerate(languages)]
    records.write_records(tmp_path, records.TEXT_PAIRS, "train", pairs)
    files = records.list_files(tmp_path, records.TEXT_PAIRS, "train")

    known = balanced_languages(files, records.parse_text_pair, "language_b")

    def copies(languages, temperature):
        table = _copies_per_language(known, "language_b", languages, temperature)
        return table.lookup(tf.constant([" ".join(pair) for pair in counts])).numpy().tolist()

    assert copies((), 1e9) == pytest.approx([1.0, 2.0, 2.0, 6.0])
    assert copies(("en",), 1e9) == pytest.approx([1.0, 4.0, 0.0, 0.0])  # their second language
    assert copies(("am", "sw"), 1.0) == [0.0, 0.0, 1.0, 1.0]
    with pytest.raises(UserError, match="^No records in language de; the data has am, en, sw.$"):
        without_languages([known], "language_b", ("de",))
    config = toy_data.toy_config(tmp_path)
    config.data.language_temperature = 1e9
    items = endless_items(files, records.parse_text_pair, config.data, 5, start_of(0), (), "language_b")
    ((_, (_, epoch)),) = items.unbatch().batch(12 + 6 * 2 + 2 * 6).take(1)
    drawn = collections.Counter(zip(epoch["language_a"].numpy().astype(str), epoch["language_b"].numpy().astype(str)))
    assert drawn == {("de", "en"): 12, ("am", "en"): 6, ("en", "am"): 6, ("en", "sw"): 12}


def test_items_are_copied_as_often_as_their_language_says():
    table = tf.lookup.KeyValueTensorInitializer(tf.constant(["de", "en"]), tf.constant([2.5, 0.0]))
    copies = tf.lookup.StaticHashTable(table, default_value=0.0)
    block = {
        "problem": ["", "", DAMAGED_RECORD] * 100, "language": ["de", "en", ""] * 100, "number": tf.range(300),
        "group": dict.fromkeys(("number", "slots", "bytes_before", "bytes_in_all"), tf.constant(0, tf.int64)),
        "ends": {name: tf.range(0, 3000, 10, tf.int64) * (name != "slot") for name in ("slot", "end", "count")},
    }  # fmt: skip
    block["group"].update(slots=tf.constant(1, tf.int64), bytes_before=tf.constant(10, tf.int64))
    block["group"].update(bytes_in_all=tf.constant(9000, tf.int64))
    block.update({name: tf.constant(block[name]) for name in ("problem", "language")})
    seeds, window = tf.constant([3, 0], tf.int64), tf.constant(20, tf.int64)
    begin, placed = _place_block(tf.constant(start_of(0)[3:]), block, copies, "language", seeds, window)
    of = np.bincount(placed["number"].numpy(), minlength=300).reshape(100, 3)
    assert set(of[:, 0]) == {2, 3} and abs(of[:, 0].mean() - 2.5) < 0.2  # the deviation of this mean is 0.05
    assert not of[:, 1].any() and np.all(of[:, 2] == 1)  # what could not be read is counted once
    assert begin[0] == of.sum() and set(placed["in_epoch"].numpy()) == {3 * of.sum()}  # of 3,000 bytes of 9,000
    assert np.flatnonzero(placed["begin"].numpy() != b"").tolist() == [*range(0, of.sum(), 20)]
