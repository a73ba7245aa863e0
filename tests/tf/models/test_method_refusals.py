"""What methods, losses and their streams refuse, in one line each."""

import functools

import contract
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
import toy_data
from snapshots import assert_refusals
from test_bridge import DIGEST, STREAM, embed, write_teacher
from test_embn import group_config
from test_frozen import cached_config, model_of
from test_translation_distillation import METHOD

from mural_lite.errors import UserError
from mural_lite.trust import check_stored
from mural_tf.data.streams.columns import ColumnFolder
from mural_tf.data.streams.pipeline import training_batches
from mural_tf.data.streams.text_text import pivot_languages
from mural_tf.losses.globetrotter import transitive_weights
from mural_tf.losses.mule import distances
from mural_tf.models import complete, method_class
from mural_tf.models.build import build_model
from mural_tf.models.frozen import on_features, standardize_adapters
from mural_tf.runs.finetune import _with_source_architecture
from mural_tf.runs.teachers import TextVectors, open_teacher


def built(method="mural", **fields):
    return lambda _: contract.build(contract.toy_config(method, **fields))


@functools.cache
def towers(method):
    model = build_model(complete(contract.toy_config(method)), 50)
    return model.image_encoder, model.text_encoder


def of_towers(method, fields):
    """A model of towers that are there."""
    config = complete(contract.toy_config(method, **fields))
    config.image_size = config.vocabulary_size = 0
    return method_class(method)(*towers(method), config)


def made(method="mural", **fields):
    return lambda _: of_towers(method, fields)


def known(model, **fields):
    def call(_):
        config = contract.toy_config(model)
        config.method.update({"teacher": "somewhere", **fields})
        build_model(complete(config), 30).learn(None, None, None)

    return call


def without_memory(folder):
    def too_much(tower):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[65536,65536]")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mural_tf.models.build.build_image_encoder", too_much)
        build_model(toy_data.toy_config(folder), 80)


def batches(config, tokenizer, stream):
    return training_batches(config, tokenizer, streams=(stream,))


def streamed(stream, method, images=None, make=batches, **fields):
    def call(folder):
        config = toy_data.toy_config(toy_data.write_toy_data(folder, images), method)
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
        make(complete(config), toy_data.toy_tokenizer(), stream)

    return call


def groups(branch, **fields):
    def call(folder):
        config = group_config(folder)
        config[branch].update(fields)
        batches(config, contract.word_tokenizer(), "image_groups")

    return call


def alone(count):
    images = toy_data.image_text_records(count)
    for image in images:
        image.caption_groups = ["", ""]
    return images


def new_adapter(folder):
    config = cached_config(toy_data.write_toy_data(folder), cached=False)
    standardize_adapters(model_of(config), config, toy_data.toy_tokenizer(), folder)


def trained_on_states(method="mural", **fields):
    return lambda _: on_features(contract.build(contract.toy_config(method, **fields)))


def other_targets(digest, size):
    def call(folder):
        ColumnFolder(folder, 4, "float16", DIGEST).extend(STREAM[:1], embed)
        ColumnFolder(folder, 4, "float16", digest).extend(STREAM, lambda texts: embed(texts, size))

    return call


def teacher(spoil):
    def call(folder):
        write_teacher(folder / "t", ["a", "b"], embed([b"a", b"b"]))
        spoil(folder / "t")
        TextVectors(folder / "t").look_up([b"a"])

    return call


def with_table(table):
    return lambda folder: pyarrow.parquet.write_table(table, folder / "part-9.parquet")


def cut(folder):
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-20])


WIDE = pyarrow.table({"name": ["c"], "vector": pyarrow.array([[1.0, 2.0]])})
TABLES = {
    "of other columns": pyarrow.table({"name": ["a"], "text": ["b"]}),
    "without a name": pyarrow.table({"name": [None], "vector": [[1.0] * 4]}),
    "of two lengths": pyarrow.table({"name": ["a"] * 2, "vector": [[1.0] * 4, [1.0]]}),
    "of another length": WIDE,
    "of images": WIDE.replace_schema_metadata({b"mural_tf": b'{"kind": "images"}'}),
}
STORED = contract.toy_config(METHOD, method__heads_of="never_imported:Method")
ONE = tf.eye(2)
MODELS = ("no_such_module:Method", "outside_method:Missing", "contract:toy_config", ":Method",
          ".method:Method")  # fmt: skip
REFUSALS = {
    **{f"the model {name}": lambda _, name=name: method_class(name) for name in MODELS},
    "no memory": without_memory,
    "no loss at all": built("align", loss__image_text_weight=0.0),
    "another embedding size": made(embedding_size=64),
    "a temperature to be set": made("labse", method__text_text_temperature=0.0),
    "a temperature below 0": made(method__text_text_temperature=-0.1),
    "a temperature that is no number": made(method__text_text_temperature=float("nan")),
    "Globetrotter's alpha": made("globetrotter", method__alpha="book"),
    "a rate per task": built("globetrotter", optimizer__mode="per_task"),
    "words of another tower": made("mule", text_tower__name="bert"),
    "words of another size": made("mule", text_tower__projection=32),
    "no caption an image": made("mule", method__captions_per_image=0),
    "MULE's distance": made("mule", method__distance="manhattan"),
    "EmbN's factors": made("embn", method__factors=(1.0,)),
    "MULE's levels": made("mule", method__neighbourhood_levels=("letters",)),
    "words of no language": built("mule", text_tower__languages=()),
    "an unknown alpha": lambda _: transitive_weights(ONE, ONE, "book"),
    "an unknown distance": lambda _: distances(ONE, ONE, "manhattan"),
    # Stages that learn from another model.
    "distillation from nothing": lambda _: of_towers(METHOD, {}).begin(None, restored=False),
    "a distance of stages": made(METHOD, method__loss="euclid"),
    "a mean in a batch": made(METHOD, method__pivot="mean"),
    "two pivots in a batch": made(METHOD, method__pivot="en+de"),
    "heads without images": made(METHOD, method__heads_of="mule"),
    "an unknown part": made(METHOD, method__trained="last"),
    "the first layer of words": built(
        METHOD, method__trained="embeddings_and_first", text_tower__name="words", text_tower__languages=("en",),
        text_tower__projection=24),
    "a stored class": lambda folder: check_stored(STORED, folder / "config.json"),
    "a class of a source": lambda folder: _with_source_architecture(contract.toy_config(METHOD), STORED, folder),
    "neighbours of nobody": known("neighbours"),
    "a map of nobody": known("linear", teacher=""),
    "a map of nothing": known("linear", most_known=0),
    "targets of another teacher": other_targets("ff" * 8, 4),
    "targets of another size": other_targets(DIGEST, 5),
    **{f"a teacher's table {name}": teacher(with_table(table)) for name, table in TABLES.items()},
    "no teacher": lambda folder: open_teacher(f"{folder}/none"),
    # Frozen towers.
    "states of a tower of texts that learns": trained_on_states(text_tower__cached=True),
    "states of a tower of images that learns": trained_on_states(image_tower__cached=True),
    "an adapter to nothing": built(image_tower__adapter_size=24, image_tower__projection=0),
    "an adapter below a head": built(
        image_tower__adapter_size=24, image_tower__branch_size=0, image_tower__head_size=8),
    "a new adapter without states": new_adapter,
    "states of views": trained_on_states(
        "globetrotter", image_tower__name="vit", image_tower__image_size=32, image_tower__layers=1,
        image_tower__branch_size=0, image_tower__frozen=True, image_tower__cached=True),
    "states of masked texts": trained_on_states("globetrotter", text_tower__frozen=True, text_tower__cached=True),
    # Data.
    "captions without a language": lambda _: pivot_languages("", lambda: {"": 4}, dict),
    "no translations": streamed("triples", "etcl", alone(4)),
    "no text of the pivot": streamed("text_text", METHOD, method__pivot="sw"),
    "languages that are drawn": streamed("text_text", METHOD, data__text_pairs="co_captions_across_languages"),
    "no image of the language": groups("data", image_text_languages=("nl",)),
    "groups that are cut": groups("train", image_text_batch=6),
}  # fmt: skip


def test_a_teacher_that_is_cut_off(tmp_path):
    with pytest.raises(UserError, match="00000.parquet is damaged, or no Parquet of name and vector"):
        teacher(cut)(tmp_path)


def test_refusals(tmp_path):
    assert_refusals("refusals_of_methods", REFUSALS, tmp_path)
