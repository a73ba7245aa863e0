"""The code of docs/keras.md, run as it is printed."""

import pathlib
import re

import pytest
from toy_data import ONE_LAYER

from mural_tf.backend import keras
from mural_tf.configs import shapes_smoke
from mural_tf.loading import load

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/keras.md"


def small_config():
    config = shapes_smoke_config()
    config.image_tower.update(ONE_LAYER)
    config.train.update(dict(image_text_batch=16, text_text_batch=16, fused="off"))
    return config


shapes_smoke_config = shapes_smoke.get_config


def test_the_page_trains_evaluates_saves_and_exports(tmp_path, monkeypatch, capsys):
    """With smaller towers and batches."""
    monkeypatch.setattr(shapes_smoke, "get_config", small_config)
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert "recall@1_image_text" in capsys.readouterr().out
    tokens = {"caption": names["tokenizer"](["a red circle", "ein Kreis"])}
    expected = names["model"](tokens)["caption"].numpy()
    loaded = keras.models.load_model("shapes.keras")
    assert abs(loaded(tokens)["caption"].numpy() - expected).max() <= 1e-6
    exported = load("exported").encode_text(["a red circle", "ein Kreis"])
    assert exported == pytest.approx(expected, abs=1e-5)
