"""What each kind of stream reads and gives, by a table; its batches of two sources for the second of two pipelines."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
import toy_data
from test_pipeline import captioned

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_lite.skipped import KINDS
from mural_tf.data import records
from mural_tf.data.streams import pipeline
from mural_tf.data.streams.epochs import BEGIN, PLACE, Share
from mural_tf.data.streams.image_groups import ImageGroups
from mural_tf.data.streams.mixture import training_sources
from mural_tf.data.streams.stream import Texts, fingerprints, is_one_of
from mural_tf.data.streams.text_text import CO_CAPTIONS, FILES, pivots_of
from mural_tf.models import mount

IMAGES, PAIRS = "image_text", "text_pairs"


@pytest.mark.parametrize("name,record_type,texts,batch,order,pictures,key,many,fields", [
    ("image_text", IMAGES, ("caption",), "image_text_batch", 0, True, "language", False, {}),
    ("captions", IMAGES, ("caption",), "image_text_batch", 0, False, "language", False, {"cloze_weight": 0.0}),
    ("views", IMAGES, ("caption",), "image_text_batch", 0, True, "language", False, {"cloze_weight": 0.0}),
    ("triples", IMAGES, ("text_a", "text_b"), "image_text_batch", 0, True, "language", False, {}),
    ("text_text", PAIRS, ("text_a", "text_b"), "text_text_batch", 1, False, "language_b", True, {"pivot": None}),
])  # fmt: skip
def test_the_kinds_of_streams(name, record_type, texts, batch, order, pictures, key, many, fields):
    config = toy_data.toy_config("/nowhere")
    config.train.update(dict(image_text_batch=12, text_text_batch=20))
    config.data.update(dict(image_text_languages=("en", "de"), text_text_languages=("fr",)))
    made = pipeline.stream_of(name, config, Texts(toy_data.toy_tokenizer(), "longest"), pipelines=2)
    kind = pipeline.stream_class(name)
    assert (kind.record_type(config.data), kind.text_entries(config.data)) == (record_type, texts)
    assert (kind.batch_field, kind.order, kind.with_pictures, dict(kind.fields)) == (batch, order, pictures, fields)
    assert (made.language_key, made.takes_many) == (key, many)
    assert made.size == {"image_text_batch": 6, "text_text_batch": 10}[batch] and made.settings.seed == config.seed
    assert tuple(made.languages) == {"triples": (), "text_text": ("fr",)}.get(name, ("en", "de"))
    assert (made.decode is None) == (not pictures)
    assert pipeline.batch_size(config, name) == config.train[batch]


def test_text_pairs_of_other_sources():
    config = toy_data.toy_config("/nowhere")
    config.data.text_text_languages = ("fr",)
    texts = Texts(toy_data.toy_tokenizer(), "longest")
    found = {}
    for source in (CO_CAPTIONS, "co_captions_across_languages"):
        config.data.text_pairs = source
        made = pipeline.stream_of("text_text", config, texts)
        found[source] = (made.record_type(config.data), made.text_entries(config.data), tuple(made.languages),
                         made.decode is None, made.takes_many, made.without)  # fmt: skip
    without = "No image has two captions for data.text_pairs={}: it needs images with several captions{}."
    more = ", in different languages (one of data.text_text_languages, if set)"
    across = "co_captions_across_languages"
    assert found == {
        CO_CAPTIONS: (IMAGES, ("text_a", "text_b"), ("fr",), True, False, without.format(CO_CAPTIONS, "")),
        across: (IMAGES, ("text_a",), (), False, False, without.format(across, more)),
    }
    config.method.pivot = "en+de"
    config.data.text_pairs = FILES
    made = pipeline.stream_of("text_text", config, texts)
    assert made.takes_many
    assert made.without == "No text pair has one side in method.pivot=en+de and one in another language."


@pytest.mark.parametrize("captions,format,knows,fits", [
    (2, "mural", True, True), (3, "mural", True, False), (2, "img2dataset", True, False), (2, "mural", False, False),
])  # fmt: skip
def test_groups_of_captions(captions, format, knows, fits):
    config = base_config()
    mount(config, "mule")
    config.data.format = format
    config.method.captions_per_image = captions
    config.train.image_text_batch = 16
    tokenizer = types.SimpleNamespace(takes_languages=knows, languages=("en", "cs"))
    texts = types.SimpleNamespace(tokenizer=tokenizer)
    if not fits:
        with pytest.raises(UserError, match=f"method.captions_per_image={captions} must divide"):
            pipeline.stream_of("image_groups", config, texts)
        return
    for languages, names in (((), "en, cs"), (("de",), "de")):
        config.data.image_text_languages = languages
        made = pipeline.stream_of("image_groups", config, texts)
        assert (made.size, made.languages) == (8, ()) and pipeline.captions_per_image(config) == 2
        assert made.without == f"No training image has a caption in {names}."
    assert dict(ImageGroups.fields) == {"captions_per_image": 0, "captions_per_language": 1}
    assert pipeline.captions_per_image(toy_data.toy_config("/nowhere")) == 1


def test_names_and_fingerprints():
    assert is_one_of(tf.constant(["a", "b", "c"]), ["c", "a"]).numpy().tolist() == [True, False, True]
    assert fingerprints([b"a", b"b"]).tolist() == [3694432073954588132, 2572224033622389015]


def end_of(source, number):
    """The end of a batch's items of a source, whose numbers follow from one."""
    begin = tf.io.serialize_tensor(tf.fill([BEGIN], np.int64(number)))
    numbers = {"source": source, "position": [number, number], "used": number}
    numbers["tally"] = np.full([1 + len(KINDS), 3], 10 * number)
    return {**{name: tf.constant(value, tf.int64) for name, value in numbers.items()}, "begin": begin}


def test_the_places_of_a_batch():
    rows = [end_of(2, 5), end_of(0, 6), end_of(2, 7), end_of(0, 4)]
    items = {name: tf.stack([row[name] for row in rows]) for name in rows[0]}
    found = pipeline._progress("s", items, 3)
    assert found["s_place"].shape == (1, 3, PLACE) and found["s_tally"].shape == (1, 3, 1 + len(KINDS), 3)
    assert [set(place) for place in found["s_place"].numpy()[0]] == [{4}, {-1}, {7}]
    assert [set(tally.ravel()) for tally in found["s_tally"].numpy()[0]] == [{40}, {0}, {70}]
    alone = pipeline._progress("s", items, 1)
    assert set(alone["s_place"].numpy().ravel()) == {4} and alone["s_place"].shape == (1, 1, PLACE)
    assert set(alone["s_tally"].numpy().ravel()) == {40} and alone["s_tally"].shape == (1, 1, 1 + len(KINDS), 3)
    assert pipeline.part_name("s", types.SimpleNamespace(name="a")) == "s/a"


@pytest.fixture(scope="module")
def two_sources(tmp_path_factory):
    """Pictures with captions in four languages in two folders, of which the second counts three times."""
    folder = tmp_path_factory.mktemp("two")
    for name, begin in (("a", 0), ("b", 20)):
        images = captioned(begin + 12)[begin:]
        records.write_records(folder / name, records.IMAGE_TEXT, "train", images, shards=2)
    config = toy_data.toy_config(folder, "globetrotter")
    config.data.text_pairs = "co_captions_across_languages"
    config.data.sources = {"a": {"directory": f"{folder}/a"}, "b": {"directory": f"{folder}/b", "weight": 3}}
    config.seed = 4
    return config


def test_batches_are_as_earlier_runs_made_them(two_sources):
    names = {int(fingerprints([caption.encode()])[0]): caption for image in captioned(32) for caption in image.captions}
    batches = pipeline.training_batches(two_sources, toy_data.toy_tokenizer(), streams=("captions",), share=Share(1, 2))
    first, *_ = batches.take(1).as_numpy_iterator()
    texts = [names[number].replace(" thing", "") for number in first["caption_id"]]
    assert " ".join(texts) == "w29 0 w31 2 w9 6 w29 2 w23 6 w23 9 w25 8 w11 9"
    assert first["cloze"]["input_word_ids"].sum(axis=1).tolist() == [55, 57, 22, 22, 22, 98, 51, 22]
    assert first["captions_place"][0, :, :3].tolist() == [[0, 1, 2], [0, 5, 6]]
    assert first["data_wait_seconds"].shape == (1,)


def test_items_of_all_sources_in_file_order(two_sources):
    blocks = list(pipeline.stream_items(two_sources, toy_data.toy_tokenizer(), "captions", ("caption", "language")))
    counts = collections.Counter(language for _, languages in blocks for language in languages.tolist())
    assert counts == {b"en": 24 * 5, b"de": 24 * 5, b"fr": 24, b"cs": 24}
    chosen = two_sources.copy_and_resolve_references()
    chosen.data.image_text_languages = ("cs",)
    found = [
        caption
        for block in pipeline.stream_items(chosen, toy_data.toy_tokenizer(), "captions", ("caption",))
        for caption in block[0]
    ]
    order = [*range(12), *range(20, 32)]  # files in turn
    assert found == [b"w%d 11 thing" % number for number in order]


def test_the_pivots_of_the_data(two_sources):
    config = two_sources.copy_and_resolve_references()
    assert pivots_of(config.data, "mean") == ("de", "en") and pivots_of(config.data, "sw+en") == ("sw", "en")
    config.data.image_text_languages = ("fr", "cs")
    assert pivots_of(config.data, "mean") == ("cs", "fr")


def test_a_mixture_of_which_one_source_has_the_chosen_languages(tmp_path, capsys):
    """Each language may be in one source alone; a source without any of them has no place in a batch."""
    for name, language in (("a", "en"), ("b", "de"), ("c", "fr")):
        images = captioned(4, (language,))
        records.write_records(tmp_path / name, records.IMAGE_TEXT, "train", images)
    config = toy_data.toy_config(tmp_path)
    config.data.sources = {name: {"directory": f"{tmp_path}/{name}"} for name in "abc"}
    config.train.image_text_batch = 8

    def batch(*languages):
        config.data.image_text_languages = languages
        batches = pipeline.training_batches(config, toy_data.toy_tokenizer(), streams=("image_text",))
        assert batches.element_spec["image_id"].shape == [8]  # known before the first batch, as TPUs need it
        (values,) = batches.skip(2).take(1).as_numpy_iterator()
        return values["image_text_place"][0, :, 2].tolist()  # items that each source gave so far

    places = batch("en", "de")
    assert places[0] + places[1] == 24 and places[2] == -1
    assert batch("de") == [-1, 24, -1]
    said = capsys.readouterr().out
    assert said.count("image_text/c has no item in en, de: the other sources have its share.") == 1
    with pytest.raises(UserError, match="^No records in language sw; the data has de, en, fr.$"):
        batch("de", "sw")


def test_a_mixture_of_which_one_source_has_triples(tmp_path, capsys):
    """The other source has captions in one language alone, so that its images have no pair of languages."""
    for name, languages in (("a", ("en", "de")), ("b", ("ja",))):
        images = captioned(4, languages)
        for image in images:
            image.caption_groups = [image.image_id] * len(image.captions)
        records.write_records(tmp_path / name, records.IMAGE_TEXT, "train", images)
    config = toy_data.toy_config(tmp_path)
    config.data.sources = {name: {"directory": f"{tmp_path}/{name}"} for name in "ab"}
    config.train.image_text_batch = 4
    batches = pipeline.training_batches(config, toy_data.toy_tokenizer(), streams=("triples",))
    (values,) = batches.take(1).as_numpy_iterator()
    assert values["triples_place"][0, :, 2].tolist() == [4, -1]
    assert "triples/b has no item: the other sources have its share." in capsys.readouterr().out
    config.data.image_text_languages = ("ja", "zh")
    with pytest.raises(UserError, match="^No image has two captions of one caption_group"):
        pipeline.training_batches(config, toy_data.toy_tokenizer(), streams=("triples",))


def test_sources_of_a_configuration():
    data = toy_data.toy_config("d").data
    assert [tuple(source) for source in training_sources(data)] == [("", "d", 1.0, "mural")]
    data.sources = {"b": {"directory": "x", "weight": 2}, "a": {"directory": "y", "format": "img2dataset"}}
    found = training_sources(data)
    assert [tuple(source) for source in found] == [("a", "y", 1.0, "img2dataset"), ("b", "x", 2.0, "mural")]
    assert isinstance(found[1].weight, float)
    data.max_skipped_fraction, data.shuffle_buffer = 1.0, 0
    assert training_sources(data) == found
