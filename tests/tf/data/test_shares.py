"""Input pipelines that share the data: exact epochs, places that read nothing again, and mixtures of sources."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
import toy_data

from mural_lite.config_file import load_config, save_config
from mural_lite.errors import UserError
from mural_lite.skipped import KINDS, UNREADABLE_FILE
from mural_tf.data import records
from mural_tf.data.records import parse_text_pair
from mural_tf.data.streams.epochs import ALL, endless_items, place_of_last, start_of, usable_items
from mural_tf.data.streams.mixture import training_sources
from mural_tf.data.streams.pipeline import stream_sources, training_batches
from mural_tf.training.data_progress import DataProgress
from mural_tf.training.prepare import prepare_data

SIZES = (40, 3, 17, 0, 25, 9, 31)  # records in each of seven files


def write_pairs(folder, sizes=SIZES, name="p"):
    """Pairs that say which record they are, in files of these sizes."""
    (folder / "text_pairs").mkdir(parents=True)
    numbers = itertools.count()
    for place, size in enumerate(sizes):
        with tf.io.TFRecordWriter(str(folder / f"text_pairs/train-{place:05d}-of-{len(sizes):05d}.tfrecord")) as writer:
            for _ in range(size):
                text = f"{name}{next(numbers)}"
                writer.write(records.serialize(records.TextPair(text, "en", text, "de", "")))
    return folder


def data_config(folder, **changes):
    config = toy_data.toy_config(folder)
    config.data.update({"shuffle_buffer": 20, "max_skipped_fraction": 0.9, **changes})
    return config


def usable(folder, after=None, share=ALL, bound=0.9, **changes):
    """The usable items of text pairs, one by one, as {name: value} with the place of each."""
    data = data_config(folder, **changes).data
    files = records.list_files(folder, records.TEXT_PAIRS, "train")
    after = start_of(0) if after is None else after
    items = endless_items(files, parse_text_pair, data, 5, after, data.text_text_languages, "language_b", share)
    return usable_items(items, None, "text_text", bound, int(after[2])).unbatch()


def taken(items, count):
    """The first elements, which come through Python together: one by one takes longer than making them."""
    (together,) = as_trained(items.take(count).batch(count)).as_numpy_iterator()
    return [tf.nest.map_structure(lambda values, row=row: values[row], together) for row in range(count)]


def as_trained(items):
    """With the options of `training_batches`: rewriting the graph takes longer than it saves."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return records.untuned(items.with_options(options))


def place(item):
    return place_of_last({name: tf.constant(value)[None] for name, value in item.items()}).numpy()


def texts(items):
    return [item["text_a"].decode() for item in items]


@pytest.mark.slow
def test_what_stands_before_a_window_may_be_gone(tmp_path):
    write_pairs(tmp_path, sizes=(60, 80, 50))
    whole = taken(usable(tmp_path), 190)
    after = place(whole[150])
    order = np.array([int(item["file"]) for item in whole[:189]])
    files = records.list_files(tmp_path, records.TEXT_PAIRS, "train")
    slots = tf.random.experimental.stateless_shuffle(tf.range(3, dtype=tf.int64), [5, 0]).numpy()
    begins = dict(zip(slots.tolist(), after[6 : 6 + 3].tolist()))
    assert set(order) == {0, 1, 2} and sum(begins.values()) > 0.5 * sum(tf.io.gfile.stat(name).length for name in files)
    for file, begin in begins.items():
        with open(files[file], "r+b") as written:
            written.write(b"?" * begin)
    rest = taken(usable(tmp_path, after), 38)  # to the epoch's end
    assert texts(rest) == texts(whole[151:189]) and not rest[-1]["tally"][0, 1]


def two_sources(tmp_path, **weights):
    for name, sizes in (("big", (60, 70, 80)), ("small", (30, 30))):
        write_pairs(tmp_path / name, sizes, name)
    config = data_config(tmp_path / "big", shuffle_buffer=1000)
    config.data.sources = {name: {"directory": str(tmp_path / name), "weight": w} for name, w in weights.items()}
    return config


@pytest.mark.slow
def test_a_mixture_goes_on_where_it_was(tmp_path):
    config = two_sources(tmp_path, big=1.0, small=3.0)

    def batches(count, places=None):
        dataset = training_batches(config, toy_data.toy_tokenizer(), places, streams=("text_text",))
        return taken(dataset, count)

    whole = batches(30)
    sizes = [batch["text_a_id"].shape[0] for batch in whole]
    assert sizes == [16] * 30
    progress = DataProgress({"text_text": 2})
    for stop, batch in enumerate(whole[:20]):
        progress.note({name: tf.constant(batch[name]) for name in ("text_text_place", "text_text_tally")})
        places = progress.of_pipeline(0)
        if stop == 7:
            for one, other in zip(whole[stop + 1 :], batches(3, places)):
                np.testing.assert_array_equal(one["text_a_id"], other["text_a_id"])
            config.train.text_text_batch = 8  # the same items in other batches
            smaller = np.concatenate([batch["text_a_id"] for batch in batches(4, places)])
            np.testing.assert_array_equal(smaller, np.concatenate([batch["text_a_id"] for batch in whole[8:10]]))
    used = places["text_text"][:, 2]
    assert used.sum() == 320 and abs(used[1] / 320 - 0.75) < 0.1
    assert progress.epochs()["text_text"] == [(used[0] - 1) // 210, (used[1] - 1) // 60]


def test_sources_without_a_kind_are_left_out_of_its_stream(tmp_path):
    config = two_sources(tmp_path, big=1.0, small=1.0)
    toy_data.write_toy_data(tmp_path / "images")
    config.data.sources.images = {"directory": str(tmp_path / "images"), "weight": 2.0}
    assert [source.name for source, _ in stream_sources(config.data, "text_text")] == ["big", "images", "small"]
    assert [source.name for source, _ in stream_sources(config.data, "image_text")] == ["images"]
    prepare_data(config)
    save_config(config, tmp_path / "config.json")
    assert training_sources(load_config(tmp_path / "config.json").data) == training_sources(config.data)
    del config.data.sources.images
    with pytest.raises(UserError, match="None of data.sources .big, small. has image_text records"):
        stream_sources(config.data, "image_text")


@pytest.mark.slow
def test_a_shard_that_disappears_costs_itself(tmp_path):
    write_pairs(tmp_path, sizes=(30, 30, 30))
    items = as_trained(usable(tmp_path, shuffle_buffer=10)).as_numpy_iterator()
    for _ in range(5):
        next(items)
    time.sleep(0.5)  # until what is read ahead is there: no file may go while it is opened
    gone = records.list_files(tmp_path, records.TEXT_PAIRS, "train")[1]
    (tmp_path / "text_pairs" / gone.rsplit("/", 1)[1]).unlink()
    # What was read ahead has its items still, an epoch of them or several.
    index = 1 + KINDS.index(UNREADABLE_FILE)
    next(item for item in itertools.islice(items, 20_000) if item["tally"][index, 0])
    # Shuffling decides where in its epoch the missing file is met, one time in each.
    later = [next(items) for _ in range(600)]
    lost, file, byte = later[-1]["tally"][index]
    assert 9 <= lost <= 12 and file == 1
    assert set(texts(later[20:])) == {f"p{i}" for i in (*range(30), *range(60, 90))}
