"""A net for rewriting the project: keeps what the code computes, and compares what it computes later, bit for bit.

    python -m benchmarks.equality write FOLDER      # keeps what today's code computes
    python -m benchmarks.equality compare FOLDER    # computes again; exit code 1 and one line for every difference

The project is deterministic, so a rewrite that should change nothing can be held to equality. Five parts, chosen with
`--only` by the beginnings of their names:

    losses   of every method and variant, on one fixed batch: losses, logs, gradients and BatchNorm's moments in one
             pass and in four chunks; embeddings; logs and all variables after one training step
    keys     names, shapes and types in the checkpoint of every method and variant
    shapes   configs/shapes_smoke.py for 30 steps: every tensor of its checkpoint, and metrics.jsonl without times
    export   of three methods: signatures, and what the SavedModels and TF-Hub modules give on fixed inputs
    configs  every file of configs/, resolved; what was kept is read by `load_config`, as an old workdir's would be

`--methods=mural,mule_lp` takes a method with its variants, or a single variant, in losses, keys and export.

Weights and batches are drawn here, by name, so that neither the order in which a model is built nor the data pipeline
matters to losses and exports; the weights that a model is built with are compared on their own ("initial/…").
One thread computes. Numbers still depend on the processor and on TensorFlow's version: compare where you wrote.

A rewrite may move things on purpose. Everything that depends on the project's interface is in the first half of this
file; fields and files that moved are named in `MOVED_FIELDS` and `MOVED_CONFIGS`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.config import RENAMED, base_config, load_config, save_config
from mural_tf.encoders.kernels import set_fusion
from mural_tf.export.saved_model import export_model
from mural_tf.models import build_model, complete, mount
from mural_tf.models.step import compute_gradients, global_losses
from mural_tf.runs.pretrain import pretrain
from mural_tf.text.language_words import WordTokenizer
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.training.checkpoints import list_checkpoints, training_checkpoints
from mural_tf.training.fit import compile_model

PARTS = ("losses", "keys", "shapes", "export", "configs")

# {"loss.alpha": "method.alpha"}: where fields that this file sets are now.
MOVED_FIELDS = {old: new for old, (new, _) in RENAMED.items()}
# {"emoji_labse": "emoji:labse"}: what gives the configuration that once was this file, or file and argument.
MOVED_CONFIGS = {
    "emoji_globetrotter_supervised": "emoji:globetrotter,alpha=pairs",
    "emoji_globetrotter_text_only": "emoji:globetrotter,images=none",
}

CONFIG_ARGUMENTS = {  # of files of configs/ whose `get_config` takes one
    "etcl_finetune": ("flickr30k", "mscoco"),
    "etcl_plus_language": ("de", "cs"),
    "globetrotter_adapt": ("en", "zh"),
}
TIMES = ("seconds_per_step", "pairs_per_second", "data_wait_fraction")  # end the names of a row's timing fields
SEED = (3, 4)  # of the draws in the fixed batch's passes
CHUNKS = 4

# What depends on the project's interface -----------------------------------------------------------------------------


def put(config: ConfigDict, key: str, value) -> None:
    """Sets one field by its old name, "loss.alpha"; `MOVED_FIELDS` says where it is now."""
    if key == "model":
        mount(config, value)
        return
    if config.model not in RENAMED.get(key, ("", (config.model,)))[1]:
        return  # a field that this method never read
    *branches, field = MOVED_FIELDS.get(key, key).split(".")
    for branch in branches:
        config = config[branch]
    if field not in config:
        raise KeyError(f"{key} is not a field of the configuration: name its new place in MOVED_FIELDS.")
    config[field] = value


def configured(fields: dict) -> ConfigDict:
    """Returns the default configuration with these fields."""
    config = base_config()
    for key, value in fields.items():
        put(config, key, value)
    return config


def built(config: ConfigDict, vocabulary_size: int):
    """Returns the configured model with its optimisers; its layers have the names that a fresh process gives."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build_model(config, vocabulary_size)
    compile_model(model, config)
    return model


def evaluated(model, batch: dict) -> dict:
    """Embeddings of the batch without dropout, and the losses and logs that follow from them."""
    embeddings = model.encode(batch, training=False)
    totals, logs = global_losses(model, embeddings, batch, model.optimizers)
    return {**prefixed("embedding", embeddings), **prefixed("total", totals), **prefixed("log", logs)}


def passed(model, batch: dict, chunks: int) -> dict:
    """Logs, gradients by optimiser and variable, and BatchNorm's moments of one batch in training."""
    found = compute_gradients(model, batch, tf.constant(SEED, tf.int32), chunks, model.optimizers)
    values = prefixed("log", found.logs)
    names = unique_names(model.trainable_variables)
    for optimizer, gradients in found.by_optimizer.items():
        reached = {name: gradient for name, gradient in zip(names, gradients) if gradient is not None}
        values.update(prefixed(f"gradient/{optimizer}", reached))
    for layer, moments in found.moments.items():
        values.update(prefixed(f"moments/{layer.name}", dict(zip(("mean", "variance"), moments))))
    return values


def stepped(model, batch: dict) -> dict:
    """Takes one training step; returns its logs and all variables of the model and its optimisers after it."""
    values = prefixed("log", model.train_step(batch))
    values.update(prefixed("variable", named(own_variables(model))))
    for name, optimizer in model.optimizers.items():
        values.update(prefixed(f"optimizer_{name}", named(optimizer.variables())))
    return values


def own_variables(model) -> list[tf.Variable]:
    """The model's variables without those that sum up its logs, which have no names of their own."""
    sums = {variable.ref() for metric in model.metrics for variable in metric.variables}
    return [variable for variable in model.variables if variable.ref() not in sums]


def drawn_variables(model) -> list[tf.Variable]:
    """The variables that are given other values than those they are built with: all that embeddings depend on."""
    fixed = [v for v in model.non_trainable_variables if "moving_" in v.name or "original_vectors" in v.name]
    return [v for v in model.trainable_variables if "log_temperature" not in v.name] + fixed


def checkpoint_path(model, workdir: pathlib.Path) -> str:
    """Saves the model as training does and returns the checkpoint's path."""
    checkpoints = training_checkpoints(model, workdir, keep=1)
    checkpoints.save(1)
    checkpoints.wait()
    return last_checkpoint(workdir)


def last_checkpoint(workdir: pathlib.Path) -> str:
    """Returns the path of a workdir's last checkpoint."""
    return list_checkpoints(workdir / "checkpoints")[-1]


def trained(config: ConfigDict, workdir: pathlib.Path) -> list[dict]:
    """Trains in `workdir` and returns the rows of its metrics."""
    keras.backend.clear_session()
    pretrain(config, workdir)
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def word_pieces() -> WordPieceTokenizer:
    """A tokenizer of a hundred word pieces."""
    words = ["thing", "ding", "w", "v", *(f"##{i}" for i in range(91))]
    return WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], max_length=LENGTH)


def whole_words() -> WordTokenizer:
    """A tokenizer of twenty words in each of two languages."""
    words = [f"{language}\t{word}{i}" for language, word in (("en", "w"), ("de", "v")) for i in range(WORDS)]
    return WordTokenizer(["[PAD]", "en\t[UNK]", "de\t[UNK]", *words], LANGUAGES, max_length=LENGTH)


def resolved(name: str) -> ConfigDict:
    """Returns a configuration by the name of its old file, with ":argument" if it takes one."""
    file, _, argument = MOVED_CONFIGS.get(name, name).partition(":")
    get_config = importlib.import_module(f"configs.{file}").get_config
    return complete(get_config(argument) if argument else get_config())


def config_names() -> list[str]:
    """Returns the name of every configuration there is, without those that files share but do not resolve."""
    names = []
    for path in sorted(pathlib.Path("configs").glob("*.py")):
        if hasattr(importlib.import_module(f"configs.{path.stem}"), "get_config"):
            arguments = CONFIG_ARGUMENTS.get(path.stem)
            names += [f"{path.stem}:{argument}" for argument in arguments] if arguments else [path.stem]
    return names


def read_config(path: pathlib.Path) -> dict:
    """Returns {field: value} of a kept configuration as `load_config` reads it.

    Without the groups of languages that it did not have: `load_config` adds the file's groups to the default ones.
    """
    groups = json.loads(path.read_text(encoding="utf-8"))["evaluation"]["groups"]
    branch = MOVED_FIELDS.get("evaluation.groups", "evaluation.groups") + "."
    fields = flat(load_config(path).to_dict())
    return {k: v for k, v in fields.items() if not k.startswith(branch) or k[len(branch) :] in groups}


# Methods and variants ------------------------------------------------------------------------------------------------

SIDE, LENGTH, FEATURES, WORDS = 32, 8, 12, 20
LANGUAGES = ("en", "de")
EXAMPLES = 16

SMALL = {
    "image_tower.width": 0.25,
    "image_tower.depth": 0.25,
    "image_tower.image_size": SIDE,
    "image_tower.resize": SIDE + 8,
    "image_tower.batch_norm_momentum": 0.5,
    "image_tower.precision": "float32",
    "text_tower.precision": "float32",
    "text_tower.layers": 1,
    "text_tower.hidden_size": 32,
    "text_tower.heads": 2,
    "text_tower.feed_forward_size": 64,
    "text_tower.max_length": LENGTH,
    "text_tower.dropout": 0.1,
    "text_tower.length_groups": 2,
    "embedding_size": 80,
    "loss.temperature": 0.1,
    "optimizer.name": "adamw",
    "optimizer.learning_rate": 3e-3,
    "optimizer.text_text_learning_rate": 1e-3,
    "optimizer.warmup_steps": 2,
    "train.steps": 30,
    "train.image_text_batch": EXAMPLES,
    "train.text_text_batch": EXAMPLES,
}
DEEP = {  # draws in both towers, and an optimiser and a step as in pretraining
    "image_tower.depth": 0.6,
    "image_tower.drop_connect_rate": 0.5,
    "image_tower.batch_norm_group": "4",
    "text_tower.layers": 2,
    "text_tower.token_embedding_size": 16,
    "loss.label_smoothing": 0.1,
    "optimizer.name": "lamb",
    "optimizer.clip_norm": 1.0,
    "optimizer.image_tower_rate": 0.5,
}
TRIPLES = {"loss.image_text_weight": 1 / 3, "loss.text_text_weight": 1 / 3, "train.micro_batches": CHUNKS}
VIEWS = {
    "image_tower.head_size": 80,
    "text_tower.pooling": "first_and_mean",
    "loss.text_text_weight": 1.0,
    "loss.image_image_weight": 0.3,
    "loss.image_text_weight": 0.2,
    "loss.cloze_weight": 0.4,
}
ONE_HEAD = {
    "shared_head": True,
    "text_tower.pooling": "first",
    "loss.alpha": "paper",
    "loss.alpha_divided": False,
    "loss.alpha_margin": 0.5,  # with less, nearly every pair here is a positive
    "loss.view_anchors": "first",
    "loss.mask_duplicates": False,
}
TEXT_ONLY = {"image_tower.name": "none", "image_tower.projection": 80, "image_tower.head_size": 0}
CLOZE_ONLY = {f"loss.{task}_weight": 0.0 for task in ("text_text", "image_image", "image_text")}
WORD_VECTORS = {
    "image_tower.name": "features",
    "image_tower.feature_size": FEATURES,
    "image_tower.branch_size": 32,
    "image_tower.projection": 24,
    "embedding_size": 24,
    "text_tower.name": "words",
    "text_tower.languages": LANGUAGES,
    "text_tower.word_size": 16,
    "text_tower.language_size": 20,
    "text_tower.hidden_size": 24,
    "text_tower.projection": 24,
    "loss.text_text_weight": 0.0,
    "data.captions_per_image": 2,
    "mule.language_weight": 0.1,
    "optimizer.decay_rate": 0.5,
    "optimizer.decay_steps": 1,
}
TEXT_PAIRS = {
    "loss.text_text_weight": 1.0,
    "text_tower.word_vectors": "vectors/{language}.vec",  # never read: only `begin` does
    "mule.word_vector_weight": 0.5,
    "text_tower.recurrent": "gru",
    "train.micro_batches": CHUNKS,
}
LP = {
    "loss.image_text_weight": 0.0,
    "loss.text_text_weight": 1.0,
    "mule.neighbourhood_weight": 0.0,
    "mule.neighbourhood_levels": ("words",),
    "mule.language_weight": 0.0,
    "text_tower.frozen_words": True,
}
PARALLEL = {"text_tower.language_branches": "parallel", "mule.distance": "cosine"}


@dataclasses.dataclass
class Variant:
    """A method and the fields in which this use of it differs from the default configuration."""

    method: str
    fields: dict

    def __init__(self, method: str, *fields: dict):
        self.method = method
        words = WORD_VECTORS if method in ("mule", "embn", "parallel_embn") else {}
        self.fields = {"model": method, **SMALL, **words}
        for some in fields:
            self.fields.update(some)

    @property
    def has_words(self) -> bool:
        """Whether its texts are words of languages, and its images features."""
        return self.fields.get("text_tower.name") == "words"


VARIANTS = {
    "align": Variant("align", {"optimizer.name": "adam", "text_tower.length_groups": 1}),
    "mural": Variant("mural", DEEP),
    "mural_shared_head": Variant("mural", {"shared_head": True}),
    "mural_per_task": Variant("mural", {"optimizer.mode": "per_task", "optimizer.clip_norm": 0.5}),
    "mural_image_text": Variant("mural", {"loss.text_text_weight": 0.0, "image_tower.frozen": True}),
    "etcl": Variant("etcl", TRIPLES),
    "etcl_image_text": Variant("etcl", TRIPLES, {"loss.text_text_weight": 0.0}),
    "etcl_shared_head": Variant("etcl", TRIPLES, {"shared_head": True, "loss.mask_duplicates": False}),
    "labse": Variant("labse", TEXT_ONLY, {"loss.text_text_weight": 1.0, "text_tower.pooler": True}),
    "globetrotter": Variant("globetrotter", DEEP, VIEWS),
    "globetrotter_paper": Variant("globetrotter", VIEWS, ONE_HEAD),
    "globetrotter_pairs": Variant("globetrotter", VIEWS, {"loss.alpha": "pairs", "image_tower.name": "resnet"}),
    "globetrotter_text_only": Variant("globetrotter", VIEWS, TEXT_ONLY, CLOZE_ONLY),
    "mule": Variant("mule"),
    "mule_text_pairs": Variant("mule", TEXT_PAIRS),
    "mule_lp": Variant("mule", LP),
    "embn": Variant("embn"),
    "embn_one_language": Variant("embn", {"text_tower.languages": LANGUAGES[:1], "data.captions_per_image": 1}),
    "parallel_embn": Variant("parallel_embn", PARALLEL),
}
STILL = {"image_tower.drop_connect_rate": 0.0, "text_tower.dropout": 0.0}  # modules may train without any draw
EXPORTED = {
    "mural": Variant("mural", DEEP, STILL),
    "globetrotter": Variant("globetrotter", VIEWS, STILL),
    "mule": Variant("mule", STILL, {"loss.text_text_weight": 1.0}),
}

# Fixed batches and weights -------------------------------------------------------------------------------------------


def fixed_batch(variant: Variant) -> dict:
    """What any method of the variant's kind takes from a batch, with repeated ids, in tensors."""
    draw = np.random.default_rng(0)
    batch = word_batch(draw, variant.fields) if variant.has_words else piece_batch(draw)
    for name in ("text_a", "text_b"):
        batch[f"{name}_id"] = repeated_ids(draw, EXAMPLES)
    batch["text_group_id"] = np.arange(EXAMPLES)
    for _ in range(6):
        draw.integers(0, 99, (EXAMPLES, 2))  # keeps what is drawn next
    return tf.nest.map_structure(tf.constant, batch)


def piece_batch(draw: np.random.Generator) -> dict:
    """Pictures, and texts of word pieces."""
    batch = {name: random_pictures(draw, EXAMPLES) for name in ("image", "view_0", "view_1")}
    batch.update({name: random_pieces(draw) for name in ("caption", "text_a", "text_b", "cloze")})
    places = draw.permuted(np.tile(np.arange(1, LENGTH - 1), (EXAMPLES, 1)), axis=1)[:, :2]
    batch["cloze"].update(
        places=places.astype(np.int32),
        targets=draw.integers(5, 100, places.shape).astype(np.int32),
        weights=(draw.random(places.shape) < 0.7).astype(np.float32),
    )
    return {**batch, "image_id": repeated_ids(draw, EXAMPLES), "caption_id": repeated_ids(draw, EXAMPLES)}


def word_batch(draw: np.random.Generator, fields: dict) -> dict:
    """Features of half as many images, and texts of words; one place of a caption is empty."""
    images, languages = EXAMPLES // 2, len(fields["text_tower.languages"])
    captions = images * fields["data.captions_per_image"]
    batch = {
        "image": draw.normal(size=(images, FEATURES)).astype(np.float32),
        "image_id": repeated_ids(draw, images),
        "caption_id": repeated_ids(draw, captions),
    }
    for name, count in (("caption", captions), ("text_a", EXAMPLES), ("text_b", EXAMPLES)):
        language = draw.integers(0, languages, count).astype(np.int32)
        batch[name] = random_words(draw, language)
        batch[f"{name}_language_id"] = np.where(np.arange(count) == 5, -1, language) if name == "caption" else language
    return batch


def repeated_ids(draw: np.random.Generator, count: int) -> np.ndarray:
    """int64 [count], of which about a third occur before."""
    return draw.integers(0, 10**12, count)[np.sort(draw.integers(0, count, count))]


def random_pictures(draw: np.random.Generator, count: int, side: int = SIDE) -> np.ndarray:
    """uint8 [count, side, side, 3], in blocks."""
    return np.repeat(np.repeat(draw.integers(0, 256, (count, 4, 4, 3), np.uint8), side // 4, 1), side // 4, 2)


def random_pieces(draw: np.random.Generator) -> dict:
    """[CLS], one to six pieces and [SEP]."""
    ids = draw.integers(5, 100, (EXAMPLES, LENGTH)).astype(np.int32)
    lengths = draw.integers(3, LENGTH + 1, EXAMPLES)
    ids[:, 0], ids[np.arange(EXAMPLES), lengths - 1] = 2, 3
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    return {"input_word_ids": ids * mask, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}


def random_words(draw: np.random.Generator, language: np.ndarray) -> dict:
    """One to eight words of each text's language."""
    first = 1 + len(LANGUAGES) + WORDS * language[:, None]
    ids = (first + draw.integers(0, WORDS, (len(language), LENGTH))).astype(np.int32)
    mask = (np.arange(LENGTH) < draw.integers(1, LENGTH + 1, len(language))[:, None]).astype(np.int32)
    types = np.broadcast_to(language[:, None], ids.shape).astype(np.int32)
    return {"input_word_ids": ids * mask, "input_mask": mask, "input_type_ids": types}


def draw_weights(model) -> None:
    """Gives each variable values that follow from its name; none is 0 or 1, as biases and moving averages are."""
    for name, variable in named(drawn_variables(model)).items():
        draw, shape = np.random.default_rng(zlib.crc32(name.encode())), tuple(variable.shape)
        if len(shape) < 2:
            positive = "gamma" in name or "variance" in name
            value = draw.uniform(0.5, 1.5, shape) if positive else draw.normal(scale=0.1, size=shape)
        else:
            inputs = np.prod(shape[:-1]) if shape[-1] > 1 else np.prod(shape[:-2])
            value = draw.normal(scale=inputs**-0.5, size=shape)
        variable.assign(value.astype(np.float32))


# The five parts, each of which yields (name of a file, what it holds: arrays or values for JSON) ---------------------


def losses_and_keys(parts: list[str], methods: list[str]) -> Iterator[tuple[str, dict]]:
    """The parts "losses" and "keys", for which each model is built once."""
    for name, variant in chosen(VARIANTS, methods).items():
        config = configured(variant.fields)
        model = built(config, tokenizer_of(variant).vocabulary_size)
        if "keys" in parts:
            with tempfile.TemporaryDirectory() as folder:
                yield f"keys/{name}.json", checkpoint_keys(checkpoint_path(model, pathlib.Path(folder)))
        if "losses" in parts:
            before = set_fusion("off")  # compiling for every shape takes longer than all the rest
            yield f"losses/{name}.npz", numbers_of(model, fixed_batch(variant))
            set_fusion(before)


def numbers_of(model, batch: dict) -> dict[str, np.ndarray]:
    """What the part "losses" keeps of one model."""
    values = prefixed("initial", named(own_variables(model)))
    draw_weights(model)
    values.update(prefixed("evaluated", evaluated(model, batch)))
    for chunks in (1, CHUNKS):
        values.update(prefixed(f"chunks_{chunks}", passed(model, batch, chunks)))
    values.update(prefixed("step", stepped(model, batch)))
    return values


def checkpoint_keys(path: str) -> dict:
    """{key: [type, shape]} of everything in a checkpoint."""
    reader = tf.train.load_checkpoint(path)
    types = reader.get_variable_to_dtype_map()
    return {key: [types[key].name, shape] for key, shape in sorted(reader.get_variable_to_shape_map().items())}


def shapes() -> Iterator[tuple[str, dict]]:
    """The part "shapes"."""
    with tempfile.TemporaryDirectory() as folder:
        workdir, config = pathlib.Path(folder) / "run", resolved("shapes_smoke")
        for key, value in (("steps", 30), ("log_every", 10), ("checkpoint_every", 15), ("export", False)):
            put(config, f"train.{key}", value)
        put(config, "data.directory", f"{folder}/data")
        with silent():
            rows = trained(config, workdir)
        reader = tf.train.load_checkpoint(last_checkpoint(workdir))
        types = reader.get_variable_to_dtype_map()
        yield "shapes/weights.npz", {k: reader.get_tensor(k) for k, kind in types.items() if kind != tf.string}
        rows = [{k: v for k, v in row.items() if not k.endswith(TIMES)} for row in rows]
        yield "shapes/metrics.json", {f"row {place}": row for place, row in enumerate(rows)}


def exports(methods: list[str]) -> Iterator[tuple[str, dict]]:
    """The part "export"."""
    for name, variant in chosen(EXPORTED, methods).items():
        config, tokenizer = configured(variant.fields), tokenizer_of(variant)
        model = built(config, tokenizer.vocabulary_size)
        draw_weights(model)
        with tempfile.TemporaryDirectory() as folder, silent():
            path = export_model(model, tokenizer, config, pathlib.Path(folder) / "export")
            signatures, values = {}, {}
            for encoder in ("image_encoder", "text_encoder"):
                served(path / encoder / "1", encoder, variant, signatures, values)
            module_values(path / "hub", variant, signatures, values)
        yield f"export/{name}.json", signatures
        yield f"export/{name}.npz", values


def served(path: pathlib.Path, encoder: str, variant: Variant, signatures: dict, values: dict) -> None:
    """Adds one SavedModel's signatures and what they give."""
    loaded = tf.saved_model.load(str(path))
    for name, function in loaded.signatures.items():
        inputs = function.structured_input_signature[1]
        signatures[f"{encoder}/{name}/inputs"] = described(inputs)
        signatures[f"{encoder}/{name}/outputs"] = described(function.structured_outputs)
        fixed = {key: inputs_of(variant)[key] for key in inputs}
        values.update(prefixed(f"{encoder}/{name}", function(**fixed)))


def module_values(folder: pathlib.Path, variant: Variant, signatures: dict, values: dict) -> None:
    """Adds what the TF-Hub modules give, not training and training, and their variables' names and shapes."""
    preprocessor = tf.saved_model.load(str(folder / "text_preprocessor"))
    tokens = preprocessor(inputs_of(variant)["text"])
    pieces = preprocessor.tokenize(inputs_of(variant)["text"])
    values.update(prefixed("hub/tokens", tokens))
    lengths = pieces.merge_dims(1, 2).row_lengths()
    values.update(prefixed("hub/pieces", {"ids": pieces.flat_values, "lengths": lengths}))
    for encoder, inputs in (("image_encoder", inputs_of(variant)["image"]), ("text_encoder", tokens)):
        module = tf.saved_model.load(str(folder / encoder))
        signatures[f"hub/{encoder}/variables"] = described(named(module.variables))
        signatures[f"hub/{encoder}/trainable"] = sorted(named(module.trainable_variables))
        for training in (False, True):
            found = module(inputs, training=training)
            found = found if isinstance(found, dict) else {"embedding": found}
            values.update(prefixed(f"hub/{encoder}/training {training}", found))
        values.update(prefixed(f"hub/{encoder}/after training", named(module.variables)))


def inputs_of(variant: Variant) -> dict[str, tf.Tensor]:
    """Inputs of every signature by name; one picture is damaged, one text is empty, one too long."""
    draw = np.random.default_rng(1)
    if variant.has_words:
        image = draw.normal(size=(4, FEATURES)).astype(np.float32)
        encoded = [row.tobytes() for row in image]
        tokens, text = random_words(draw, np.array([0, 1, 1, 0])), ["<en> w1 w2", "", "v3 v4 x", "<de> v0 " * 9]
    else:
        image = random_pictures(draw, 4).astype(np.float32) / 255.0
        pictures = random_pictures(draw, 4, SIDE + 16)
        encoded = [tf.io.encode_png(pictures[i]).numpy() for i in range(3)] + [tf.io.encode_jpeg(pictures[3]).numpy()]
        tokens, text = random_pieces(draw), ["thing w12", "", "Thing 日本", "ding v7 " * 9]
    inputs = {"image": image, "image_bytes": [*encoded, b"damaged"], "text": text, **tokens}
    return {name: tf.constant(value) for name, value in inputs.items()}


def configs(names: list[str]) -> Iterator[tuple[str, dict]]:
    """The part "configs": {field: value} of each configuration; one that is gone gives nothing."""
    for name in names:
        try:
            yield f"configs/{name}.json", flat(resolved(name).to_dict())
        except (ModuleNotFoundError, AttributeError) as error:
            yield f"configs/{name}.json", {"gone": f"{error}; name its new place in MOVED_CONFIGS"}


# Names and arrays ----------------------------------------------------------------------------------------------------


def chosen(variants: dict[str, Variant], methods: list[str]) -> dict[str, Variant]:
    """The variants of `--methods`; all if that is empty."""
    return {name: v for name, v in variants.items() if not methods or name in methods or v.method in methods}


def tokenizer_of(variant: Variant):
    """The tokenizer of the variant's kind of texts."""
    return whole_words() if variant.has_words else word_pieces()


def prefixed(prefix: str, values: dict) -> dict[str, np.ndarray]:
    """Copies of tensors, and of variables as they are now, under "prefix/name"."""
    return {f"{prefix}/{name}": np.array(value) for name, value in values.items()}


def unique_names(variables) -> list[str]:
    """The names of variables; a name that occurs again has its count behind it."""
    counts, names = {}, []
    for variable in variables:
        counts[variable.name] = counts.get(variable.name, 0) + 1
        names.append(variable.name if counts[variable.name] == 1 else f"{variable.name}#{counts[variable.name]}")
    return names


def named(variables) -> dict[str, tf.Variable]:
    """Variables by their unique names."""
    return dict(zip(unique_names(variables), variables))


def described(tensors: dict) -> dict:
    """{name: [type, shape]} of tensors, specifications or variables."""
    return {name: [value.dtype.name, list(value.shape)] for name, value in sorted(tensors.items())}


def flat(values: dict, prefix: str = "") -> dict:
    """{"a.b": value} of a tree of dictionaries; an empty one counts as a value."""
    found = {}
    for key, value in values.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value})
    return found


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keeps what the project prints from the screen."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


# Keeping and comparing -----------------------------------------------------------------------------------------------


def keep(path: pathlib.Path, content: dict) -> None:
    """Writes one file of a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.name == "configs":
        save_config(resolved(path.stem), path)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    else:
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def kept(path: pathlib.Path) -> dict:
    """Reads what `keep` wrote."""
    if path.parent.name == "configs":
        return read_config(path)
    if path.suffix == ".npz":
        with np.load(path) as values:
            return dict(values)
    return json.loads(path.read_text(encoding="utf-8"))


def differences(before: dict, after: dict) -> Iterator[str]:
    """Yields a line for every entry in which two files' contents differ."""
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            yield f"{name}: gone"
        elif name not in before:
            yield f"{name}: new"
        elif isinstance(before[name], np.ndarray):
            yield from (f"{name}: {text}" for text in array_difference(before[name], after[name]))
        elif as_json(before[name]) != as_json(after[name]):
            yield f"{name}: {as_json(before[name])} became {as_json(after[name])}"


def as_json(value) -> str:
    """A value as its file has it, so that a tuple is a list."""
    return json.dumps(value, default=list, sort_keys=True)


def array_difference(before: np.ndarray, after: np.ndarray) -> Iterator[str]:
    """Yields how two arrays differ, if they do."""
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        yield f"{before.dtype} {list(before.shape)} became {after.dtype} {list(after.shape)}"
    elif not np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
        apart = np.abs(before.astype(np.float64) - after.astype(np.float64))
        largest = np.max(np.abs(before.astype(np.float64)))
        yield f"{np.count_nonzero(apart)} of {apart.size} differ, by up to {np.max(apart):.3g} (largest {largest:.3g})"


def contents(parts: list[str], methods: list[str], names: list[str]) -> Iterator[tuple[str, dict]]:
    """Computes the chosen parts; `names` are those of the configurations."""
    if {"losses", "keys"} & set(parts):
        yield from losses_and_keys(parts, methods)
    if "shapes" in parts:
        yield from shapes()
    if "export" in parts:
        yield from exports(methods)
    if "configs" in parts:
        yield from configs(names)


def write(folder: pathlib.Path, parts: list[str], methods: list[str]) -> int:
    """Keeps the chosen parts in the folder; returns the exit code."""
    count = 0
    for name, content in contents(parts, methods, config_names()):
        keep(folder / name, content)
        count += 1
    print(f"Kept {count} files in {folder}; {time.process_time():.0f} s of processor time.")
    return 0


def compare(folder: pathlib.Path, parts: list[str], methods: list[str]) -> int:
    """Compares the chosen parts with the folder's; returns the exit code."""
    entries, found, seen = 0, 0, set()
    names = sorted(path.stem for path in (folder / "configs").glob("*.json"))
    for name, content in contents(parts, methods, names):
        seen.add(name)
        before = kept(folder / name) if (folder / name).exists() else {}
        entries += len(before)
        for line in differences(before, content) if before else [f"not in {folder}"]:
            found += 1
            print(f"{name} {line}", flush=True)
    if not methods:
        for path in sorted(path for part in parts for path in (folder / part).glob("*.*")):
            if str(path.relative_to(folder)) not in seen:
                found += 1
                print(f"{path.relative_to(folder)} is not computed any more")
    what = f"{entries:,} entries of {len(seen)} files; {time.process_time():.0f} s of processor time"
    print(f"{found} differences in {what}." if found or not entries else f"Equal: {what}.")
    return 1 if found or not entries else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help=f"beginnings of parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--methods", default="", help="methods or variants, with commas; empty: all")
    arguments = parser.parse_args()
    beginnings = tuple(arguments.only.split(","))
    parts = [part for part in PARTS if part.startswith(beginnings)]
    methods = [method for method in arguments.methods.split(",") if method]
    unknown = set(methods) - {*VARIANTS, *(variant.method for variant in VARIANTS.values())}
    if not parts or unknown:
        parser.error(f"no part {arguments.only!r}" if not parts else f"no method or variant {', '.join(unknown)}")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sys.exit({"write": write, "compare": compare}[arguments.command](arguments.folder, parts, methods))


if __name__ == "__main__":
    main()
