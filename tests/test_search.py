"""Exact search and its contact sheet, with images that are one colour and queries that name it."""

import io
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mural_tf.config import ConfigurationError
from mural_tf.data import records
from mural_tf.search import contact_sheet, exact

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS = {"red": (1, 0, 0), "rot": (1, 0, 0), "green": (0, 1, 0), "purple": (0.6, 0, 0.8)}


class ColorEmbedder:
    """An image is its mean colour, a text the colour it names; L2-normalised."""

    def encode_image(self, images, batch_size=64, on_error="raise", progress=None):
        vectors, kept = [], []
        for index, image in enumerate(images):
            data = image if isinstance(image, bytes) else pathlib.Path(image).read_bytes()
            try:
                color = np.array(Image.open(io.BytesIO(data)).convert("RGB"), np.float32).mean((0, 1))
            except OSError:
                continue
            vectors.append(color / np.linalg.norm(color))
            kept.append(index)
        return np.array(vectors, np.float32), np.array(kept)

    def encode_text(self, texts):
        return np.array([WORDS[text] for text in texts], np.float32)


def png(color):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(buffer, format="PNG")
    return buffer.getvalue()


# Cosines with red: red 1, orange (4, 3, 0)/5: 0.8, violet (3, 0, 4)/5: 0.6, blue 0.
COLORS = {"a/orange.PNG": (200, 150, 0), "blue.png": (0, 0, 250), "red.png": (250, 0, 0), "violet.png": (150, 0, 200)}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images" / "a").mkdir(parents=True)
    for name, color in COLORS.items():
        (tmp_path / "images" / name).write_bytes(png(color))
    (tmp_path / "images" / "broken.png").write_bytes(b"broken")
    (tmp_path / "images" / "notes.txt").write_text("no image")
    return tmp_path / "images"


def test_folder_is_ranked_by_cosine(folder):
    hits = exact.search(ColorEmbedder(), folder, "red", top=3)
    assert [(hit.rank, hit.name) for hit in hits] == [(1, "red.png"), (2, "a/orange.PNG"), (3, "violet.png")]
    assert np.abs(np.array([hit.score for hit in hits]) - [1, 0.8, 0.6]).max() < 1e-6
    assert exact.search(ColorEmbedder(), folder, "rot", top=3) == hits  # the same thing in another language
    # purple (3, 0, 4)/5: violet 1, blue 0.8, red 0.6, orange 0.48; the fifth is broken
    hits = exact.search(ColorEmbedder(), folder, "purple", top=99)
    assert [hit.name for hit in hits] == ["violet.png", "blue.png", "red.png", "a/orange.PNG"]


def test_split_of_records_is_searched(tmp_path):
    rows = [records.ImageTextRecord(name, png(color), [], [], []) for name, color in COLORS.items()]
    records.write_records(tmp_path, records.IMAGE_TEXT, "test", [rows[0], *rows], shards=2)  # orange comes twice
    hits = exact.search(ColorEmbedder(), tmp_path, "red", top=9, split="test")
    assert [hit.name for hit in hits] == ["red.png", "a/orange.PNG", "violet.png", "blue.png"]
    assert exact.open_images(tmp_path, "test").read(["blue.png"]) == {"blue.png": png(COLORS["blue.png"])}


def test_index_equals_a_full_sort_with_ties():
    random = np.random.default_rng(0)
    embeddings = random.integers(-2, 3, (200, 3)).astype(np.float32)
    query = random.integers(-2, 3, 3).astype(np.float32)
    expected = sorted(range(200), key=lambda i: (-float(embeddings[i] @ query), i))
    index = exact.ImageIndex([str(i) for i in range(200)], embeddings)
    for top in (1, 7, 50, 200, 1000):
        assert [int(hit.name) for hit in index.search(query, top)] == expected[:top]


@pytest.mark.parametrize("query, top, message", [(" ", 5, "query is empty"), ("red", 0, "top must be at least 1")])
def test_unusable_queries_are_named(folder, query, top, message):
    with pytest.raises(ConfigurationError, match=message):
        exact.search(ColorEmbedder(), folder, query, top)


def test_unusable_folders_are_named(folder, tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        exact.open_images(folder / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="No images in .*empty"):
        exact.open_images(tmp_path / "empty")
    (tmp_path / "empty" / "broken.jpg").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="None of the 1 images can be read"):
        exact.search(ColorEmbedder(), tmp_path / "empty", "red")


def test_search_and_show_prints_and_draws(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(exact, "load", lambda path: ColorEmbedder())
    exact.search_and_show("model", str(folder), "red", top=2, output=str(tmp_path / "results.png"))
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert ["1", "+1.000", "red.png"] in lines and ["2", "+0.800", "a/orange.PNG"] in lines and len(lines) == 4
    assert "1 of 5 images cannot be read" in printed.err
    assert Image.open(tmp_path / "results.png").format == "PNG"


def test_output_in_a_missing_folder_is_named_before_loading(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "load", lambda path: pytest.fail("loaded the model first"))
    with pytest.raises(ConfigurationError, match="--output"):
        exact.search_and_show("model", str(folder), "red", output=str(tmp_path / "missing" / "results.png"))


def test_contact_sheet_shows_the_thumbnails_in_order(tmp_path):
    hits = [exact.Hit(1, 0.9, "red"), exact.Hit(2, 0.5, "blue"), exact.Hit(3, 0.1, "broken")]
    images = {"red": png((250, 0, 0)), "blue": png((0, 0, 250)), "broken": b"broken"}
    contact_sheet.write_contact_sheet(tmp_path / "sheet.png", "red", hits, images, columns=2)
    sheet = np.array(Image.open(tmp_path / "sheet.png"))
    red, blue = (np.argwhere((sheet == color).all(-1)) for color in ((250, 0, 0), (0, 0, 250)))
    # 8 x 6 fits into 180 x 180 as 180 x 135.
    assert len(red) == len(blue) == 180 * 135
    assert red[:, 1].max() < blue[:, 1].min() and red[:, 0].min() == blue[:, 0].min()
    assert sheet.shape[0] > red[:, 0].max() + contact_sheet.THUMBNAIL  # a second row for the third
    assert (sheet[: red[:, 0].min()] < 100).any()  # the title


@pytest.mark.parametrize(
    "query",
    ["ein roter Ballon", "赤い風船", "नमस्ते दुनिया", "بالون أحمر", "လေပူဖောင်း", "🎈", "x" * 500, "a\x00b\n", "\udcff"],
)
@pytest.mark.parametrize("fonts", ["installed", "none"])
def test_any_script_is_drawn(query, fonts, tmp_path, monkeypatch):
    if fonts == "none":
        monkeypatch.setattr(contact_sheet, "_installed_fonts", lambda: ())
    contact_sheet._font_for.cache_clear()
    hit = exact.Hit(1, 0.5, f"{query}.png")
    note = contact_sheet.write_contact_sheet(tmp_path / "sheet.png", query, [hit], {hit.name: png((9, 9, 9))})
    contact_sheet._font_for.cache_clear()
    assert Image.open(tmp_path / "sheet.png").size[0] < 1000
    if fonts == "none" and query == "赤い風船":
        assert "赤" in note
    if query.isascii() and query.isprintable():
        assert note == ""


def run(script, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, timeout=120, env=environment
    )


def test_script_reports_a_mistake_in_one_line(tmp_path):
    result = run("run_search.py", f"--model={tmp_path}", f"--images={tmp_path}", "--query=red")
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if line]
    assert lines[-1].startswith("Error: No images in ") and "Traceback" not in result.stderr


@pytest.mark.parametrize("script", ["run_search.py", "run_evaluate.py"])
def test_help_imports_no_tensorflow(script):
    code = (
        f"import sys, runpy; sys.argv = [{script!r}, '--help']\n"
        f"try: runpy.run_path({str(ROOT / script)!r}, run_name='__main__')\n"
        "finally: assert 'tensorflow' not in sys.modules, 'TensorFlow was imported'"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert "--model" in result.stdout and "TensorFlow was imported" not in result.stderr
