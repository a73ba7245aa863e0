"""The README.md of an export, as the Hub's own library reads it; and what is read of a README.md of others."""

import json
import types

import pytest

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.export import model_card
from mural_tf.export.model_card import NOT_TRAINED
from mural_tf.export.readme import check_license, readme_of
from mural_tf.pretrained.front_matter import front_matter, origin_of
from mural_tf.pretrained.origin import Origin, origins

BASE = "siglip hf://google/siglip2 at 0123456789abcdef0123456789abcdef01234567, licence apache-2.0, languages sw no"
METRICS = {
    "xtd/de/mean_recall": 61.257, "xtd/de/text_to_image/recall@1": 40.0, "xtd/de/image_to_text/recall@1": 41.0,
    "xtd/no/mean_recall": 55.5, "xtd/no/text_to_image/recall@10": None, "xtd/all/mean_recall": 58.4,
}  # fmt: skip


def card_of(tower="efficientnet", origin="", **values):
    """What `describe_model` returns, as far as it is read."""
    evaluations = {"xtd": {"data": "xtd10", "split": "test", "step": 3, "languages": ["de", "no"]}}
    data = {"source": "records", "counts": {"train": 3}, "languages": ["de", "zh-Hant"]}
    card = {
        "name": "mural", "method": "MURAL", "parameters": 12_345, "embedding_size": 512, "origin": origin,
        "training_data": data, "evaluations": evaluations, "metrics": METRICS,
        "config": {"image_tower": {"name": tower}, "text_tower": {"name": "hub"}},
        "image": {"resize": 60, "image_size": 50, "resize_mode": "squash"},
        "text": {"max_length": 64, "prompt": "", "prompts": {}},
    }  # fmt: skip
    return {**card, **values}


def read(card, license=""):
    repocard = pytest.importorskip("huggingface_hub.repocard")
    return repocard.ModelCard(readme_of(card, license))


def test_the_hubs_library_reads_it():
    data = read(card_of(), "cc-by-4.0").data
    assert (data.license, data.library_name) == ("cc-by-4.0", "mural-tf")
    assert data.pipeline_tag == "zero-shot-image-classification" and "base_model" not in data.to_dict()
    assert data.language == ["de", "zh"] and data.to_dict()["language_bcp47"] == ["zh-Hant"]
    results = {(one.dataset_config, one.metric_name): one for one in data.eval_results}
    assert {key: one.metric_value for key, one in results.items()} == {
        ("de", "mean of R@1, 5, 10, both directions"): 61.26,
        ("de", "text to image, R@1"): 40.0,
        ("de", "image to text, R@1"): 41.0,
        ("no", "mean of R@1, 5, 10, both directions"): 55.5,  # not Python's False, as YAML would have it
    }
    one = results["de", "text to image, R@1"]
    assert (one.task_type, one.dataset_type, one.dataset_split) == ("image-text-retrieval", "xtd10", "test")
    assert one.dataset_name == "xtd (xtd10), de"
    assert one.metric_type == "recall_at_1" and data.model_name == "mural"


def test_what_imported_weights_say_of_themselves_is_said_again():
    unknown = {"source": "emoji", "languages": ["de"]}  # of no data set that could be looked at
    data = read(card_of("none", BASE, training_data=unknown, evaluations={})).data
    assert data.license == "apache-2.0" and data.language == ["no", "sw"] and data.base_model == ["google/siglip2"]
    assert data.pipeline_tag == "sentence-similarity" and data.eval_results is None
    both = f"{BASE}; bert LaBSE, licence not said in its folder; pictures and casing as its trainers had them"
    card = read(card_of(origin=both))
    assert card.data.license is None and card.data.language == ["de", "no", "sw", "zh"]  # two parts, one unknown
    assert f"Its weights began as {both}." in card.text
    assert read(card_of(origin=both), "mit").data.license == "mit"


def test_the_text_has_the_results_and_the_lines_to_use_it():
    text = read(card_of()).text
    assert "| xtd (xtd10) | test | de | 61.3 | 40.0 | 41.0 |" in text  # no column of R@10, measured in no language
    assert "| xtd (xtd10) | test | no | 55.5 |  |  |" in text
    assert 'mural_tf.load("hf://ORG/NAME")' in text and "encode_image" in text
    assert "encode_image" not in read(card_of("none")).text


IMPORTED = {"source": NOT_TRAINED, "languages": []}


def test_an_imported_model_is_described_by_its_towers_and_inputs():
    """Not by the method that could train it further, nor as multilingual where nobody says so."""
    config = {
        "image_tower": {"name": "naflex", "layers": 12, "hidden_size": 768, "patches": 256, "patch_size": 16},
        "text_tower": {"name": "modernbert", "layers": 22, "hidden_size": 384},
    }
    origin = "naflex hf://google/siglip2-naflex, licence not said in its folder"
    texts = {"max_length": 77, "prompt": "", "prompts": {"query": "search: ", "document": ""}}
    pixels = {"resize": 272, "image_size": 272, "resize_mode": "patches"}
    values = dict(config=config, training_data=IMPORTED, evaluations={}, image=pixels, text=texts)
    card = read(card_of(origin=origin, **values))
    assert "multilingual" not in card.data.tags and "modernbert" in card.data.tags and "mural" not in card.data.tags
    assert "# google/siglip2-naflex\n\nVectors of images and sentences in one space of 512 numbers;" in card.text
    for sentence in (
        "Imported, and not trained here; the method to train it further is MURAL.",
        "- Texts: `modernbert`, 22 layers of 384 numbers. At most 77 pieces of a text are read,",
        '- `encode_text(texts, prompt="query")` puts "search: " before each text.',
        '- `encode_text(texts, prompt="document")` puts nothing before each text.',
        "- Images: `naflex`, 12 layers of 768 numbers. Pictures keep their shape,",
        "in at most 256 patches of 16 x 16 pixels.",
        "- Languages: not said where its weights come from.",
        "Its weights began as naflex hf://google/siglip2-naflex, licence not said in its folder.",
        "it was not measured, in any language.",
    ):
        assert sentence in card.text, sentence
    one = read(card_of(origin=BASE.replace("sw no", "en"), **values)).data
    assert one.language == ["en"] and "multilingual" not in one.tags
    assert "multilingual" in read(card_of(origin=BASE, **values)).data.tags


@pytest.mark.parametrize("tower, pixels, sentence", [
    ("efficientnet", ("squash", 60, 50), "resized to 60 x 60, square or not; the middle 50 x 50 pixels"),
    ("vit", ("shorter_side", 37, 37), "resized to 37 pixels of their shorter side; the middle 37 x 37 pixels"),
])  # fmt: skip
def test_how_pictures_are_prepared(tower, pixels, sentence):
    image = dict(zip(("resize_mode", "resize", "image_size"), pixels))
    towers = {"name": tower, "layers": 2, "hidden_size": 8}
    config = {"image_tower": towers, "text_tower": {"name": "words"}}
    text = {"max_length": 9, "prompt": "query: ", "prompts": {}}
    body = read(card_of(config=config, image=image, text=text)).text
    assert sentence in body and ("2 layers of 8" in body) == (tower == "vit")
    assert '- Every text begins with "query: " unless told otherwise.' in body and "- Languages: de, zh-Hant." in body


def test_the_card_of_an_imported_text_tower():
    config = base_config()
    config.origin = "sentences folder, licence not said in its folder"
    config.image_tower.name = "none"
    model = types.SimpleNamespace(title="LaBSE", trainable_variables=[], state_logs=dict)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_card, "numbers_of", lambda model: {})
        patch.setattr(model_card, "trainable_parameters", lambda model: 3)
        card = model_card.describe_model(model, config)
    assert card["image"] == {} and card["training_data"] == IMPORTED
    assert "Images" not in readme_of(card) and "# folder\n" in readme_of(card)


@pytest.mark.parametrize("license", ["Apache License 2.0", "MIT", "mit\nx: 1"])
def test_a_licence_has_an_identifier(license):
    with pytest.raises(UserError, match="expected an identifier such as apache-2.0"):
        check_license(license)


def test_the_card_of_an_export(toy):
    """What is written beside the SavedModels follows from the model card that lies there."""
    text = (toy.path / "README.md").read_text(encoding="utf-8")
    assert text == readme_of(json.loads((toy.path / "model_card.json").read_text(encoding="utf-8")))


FRONT = [
    ("license: mit\nlanguage: sw", {"license": "mit", "language": "sw"}),
    ("license: 'mit' # free\nlanguage:\n- no\n- \"pt-BR\"", {"license": "mit", "language": ["no", "pt-BR"]}),
    ("language: [en, 'de']\nlicense:\n", {"language": ["en", "de"], "license": []}),
    ("language:\n  - af\n  - am\ndatasets:\n- a/b", {"language": ["af", "am"], "datasets": ["a/b"]}),
    ("model-index:\n- name: x\n  results:\n  - task:\n      type: y\nlicense: mit", {"license": "mit"}),
]  # fmt: skip


@pytest.mark.parametrize("text, values", FRONT)
def test_front_matter(tmp_path, text, values):
    yaml = pytest.importorskip("yaml")
    (tmp_path / "README.md").write_text(f"---\n{text}\n---\n\nlicense: no front matter\n")
    found = front_matter(tmp_path / "README.md")
    assert {key: found[key] for key in values} == values and set(found) <= {*values, "model-index"}
    whole = yaml.load(text, Loader=yaml.BaseLoader)  # every scalar as text
    assert {key: value or [] for key, value in whole.items() if key in ("license", "language")} == {
        key: value for key, value in found.items() if key in ("license", "language")
    }


@pytest.mark.parametrize("text", ["", "# license: mit", "license: mit\n", "---\nlicense: mit\n"])
def test_a_readme_without_front_matter_says_nothing(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    assert front_matter(tmp_path / "README.md") == {} == front_matter(tmp_path / "none.md")
    assert str(origin_of("bert", tmp_path)) == f"bert {tmp_path.name}, licence not said in its folder"


def test_an_origin_is_read_back(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: my, own; licence\nlanguage: sw\n---\n")
    origin = origin_of("bert", tmp_path)
    assert origin == Origin("bert", tmp_path.name, "", "my-own-licence", ("sw",))
    two = f"{origin}; {BASE}; pictures and casing as its trainers had them"
    assert origins(two)[0] == origin and str(origins(two)[1]) == BASE and len(origins(two)) == 2
    assert origins(two)[1].repository == "google/siglip2" and origins("") == []
