"""The code of docs/keras.md, run as it is printed."""

import ast
import pathlib
import re

import pytest
from toy_data import ONE_LAYER

from mural_lite.models import open_model
from mural_tf.backend import keras
from mural_tf.configs import shapes_smoke

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/keras.md"
(CODE,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
shapes_smoke_config = shapes_smoke.get_config


def small_config():
    config = shapes_smoke_config()
    config.image_tower.update(ONE_LAYER)
    config.train.update(dict(image_text_batch=16, text_text_batch=16, fused="off"))
    return config


def test_the_page_imports_what_there_is():
    """test_keras.py has what it promises of `fit`, `evaluate` and `save`, test_export.py of exports."""
    imports = [line for line in ast.parse(CODE).body if isinstance(line, ast.ImportFrom)]
    assert len(imports) > 5
    exec(compile(ast.Module(imports, type_ignores=[]), str(PAGE), "exec"), {})


@pytest.mark.slow
def test_the_page_trains_evaluates_saves_and_exports(tmp_path, monkeypatch, capsys):
    """With smaller towers and batches."""
    monkeypatch.setattr(shapes_smoke, "get_config", small_config)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(CODE, str(PAGE), "exec"), names)
    assert "recall@1_image_text" in capsys.readouterr().out
    tokens = {"caption": names["tokenizer"](["a red circle", "ein Kreis"])}
    expected = names["model"](tokens)["caption"].numpy()
    loaded = keras.models.load_model("shapes.keras")
    assert abs(loaded(tokens)["caption"].numpy() - expected).max() <= 1e-6
    exported = open_model("exported").encode_text(["a red circle", "ein Kreis"])
    assert exported == pytest.approx(expected, abs=1e-5)
