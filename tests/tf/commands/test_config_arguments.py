"""What follows the colon in --config=configs/emoji.py:etcl,steps=300."""

import pytest
from test_paper_configs import load

from mural_lite.errors import UserError
from mural_tf.commands import config_arguments
from mural_tf.configs import parse
from mural_tf.demo.emoji import CORE
from mural_tf.models import method_names

VARIANTS = {"small": {"steps": int, "languages": ("core", "all"), "name": str}, "large": {}}


@pytest.mark.parametrize("text, expected", [
    ("", ("small", {})),
    ("large", ("large", {})),
    ("small,steps=3,name=a=b", ("small", {"steps": 3, "name": "a=b"})),
    ("languages=all", ("small", {"languages": "all"})),
])  # fmt: skip
def test_arguments_are_a_variant_and_fields(text, expected):
    assert parse(text, VARIANTS) == expected


@pytest.mark.parametrize("text, message", [
    ("medium", "Unknown argument 'medium' of the configuration: expected one of small, large"),
    ("small,stepz=3", "Unknown argument 'stepz=3' .*: small takes steps=NUMBER, languages=core|all, name=…"),
    ("steps=many", "steps=NUMBER"),
    ("steps=-1", "Unknown argument 'steps=-1'"),
    ("small,languages=few", "languages=core"),
    ("small,name=", "Unknown argument 'name='"),
    ("small,large", "Unknown argument 'large'"),
    ("large,steps=3", "large takes no others"),
])  # fmt: skip
def test_unknown_arguments_are_answered_with_what_is_known(text, message):
    with pytest.raises(UserError, match=message):
        parse(text, VARIANTS)


def test_a_table_may_be_called_config():
    config_arguments._check_fields(["config.csv", "--output=config.out", "--config.train.steps=3"])
    with pytest.raises(UserError, match="there is no field 'csv'"):
        config_arguments._check_fields(["--config.csv=1"])


@pytest.mark.parametrize(
    "variant", ["mural", "align", "siglip", "etcl", "globetrotter", "labse", "mule", "embn", "parallel_embn"]
)
def test_emoji_configurations_take_every_method_and_steps(variant):
    config = load(f"emoji:{variant},steps=70")
    assert config.model == variant and config.model in method_names() and config.train.steps == 70
    assert config.optimizer.warmup_steps == (0 if variant == "etcl" else 7)
    strong = load(f"emoji:{variant},regularization=strong")
    assert strong.augmentation.erase == 0.3 and config.augmentation.erase == 0.0


def test_emoji_configurations_take_languages_and_variants_of_methods():
    everywhere = load("emoji:etcl,languages=all")
    assert everywhere.data.emoji == "all" and everywhere.data.directory == "data/emoji_all"
    assert everywhere.vocabulary.size == 16_000
    with pytest.raises(UserError, match="embn takes steps=NUMBER, regularization"):
        load("emoji:embn,languages=all")
    assert load("emoji:globetrotter,alpha=pairs").method.alpha == "pairs"
    text_only = load("emoji:globetrotter,images=none")
    assert (
        text_only.image_tower.name == "none" and text_only.loss.image_text_weight == 0.0 < text_only.method.cloze_weight
    )
    assert set(load("emoji:mule").text_tower.languages) == set(CORE)


def test_arguments_of_the_papers_configurations():
    assert load("emoji_align").to_dict() == load("emoji:align").to_dict()
    assert load("emoji").to_dict() == load("emoji_mural").to_dict()
    assert load("align_base:languages=en").data.image_text_languages == ("en",)
    assert load("globetrotter_resnet18:paper,alpha=pairs").method.alpha == "pairs"
    one = load("etcl_b7:image_text,languages=cs")
    assert one.data.image_text_languages == ("cs",) and one.model == "mural" and one.loss.text_text_weight == 0.0
    assert load("etcl_b7:etcl,languages=en+cs").data.image_text_languages == ("en", "cs")
    assert load("globetrotter_resnet18:adapt=zh").evaluation.groups.to_dict() == {"new": ("zh",)}
    every = load("mule:embn,languages=en+de+fr+cs")
    assert every.text_tower.languages == ("en", "de", "fr", "cs") and every.method.captions_per_image == 6
    assert load("mule:embn,languages=de").text_tower.languages == ("de",)
    assert load("mule:lp").text_tower.frozen_words and not load("mule:mule").text_tower.frozen_words


def test_a_configuration_that_is_not_python_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "folder.py").mkdir()
    for path in (tmp_path / "config.json", tmp_path / "folder.py", tmp_path):
        with pytest.raises(UserError, match="expected an existing Python file"):
            config_arguments.read_config(str(path))
