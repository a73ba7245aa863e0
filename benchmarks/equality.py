"""A net for rewriting the project: keeps what the code computes, and compares what it computes later, bit for bit.

    python -m benchmarks.equality write FOLDER      # keeps what today's code computes
    python -m benchmarks.equality compare FOLDER    # computes again; exit code 1 and one line for every difference

The project is deterministic, so a rewrite that should change nothing can be held to equality. Three parts, chosen with
`--only` by the beginnings of their names, and with `--methods=mural,mule_lp` by method or variant:

    losses   of every method and variant, on one fixed batch: losses, logs, gradients and BatchNorm's moments in one
             pass and in four chunks; embeddings; logs and all variables after one training step
    keys     names, shapes and types in the checkpoint of every method and variant
    export   of three methods: signatures, and what the SavedModels give on fixed inputs

Weights and batches are drawn here, by name, so that neither the order in which a model is built nor the data pipeline
matters; the weights that a model is built with are compared on their own ("initial/…"). One thread computes. Numbers
still depend on the processor and on TensorFlow's version: compare where you wrote. A rewrite may move fields on
purpose: then change their names in the variants below.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import zlib
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.config import base_config
from mural_tf.encoders.kernels import set_fusion
from mural_tf.export.saved_model import export_model
from mural_tf.models import build_model, mount
from mural_tf.models.step import compute_gradients, global_losses
from mural_tf.text.language_words import WordTokenizer
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.training.checkpoints import list_checkpoints, training_checkpoints
from mural_tf.training.fit import compile_model

PARTS = ("losses", "keys", "export")
SEED = (3, 4)  # of the draws in the fixed batch's passes
CHUNKS = 4


def configured(variant: dict) -> ConfigDict:
    """Returns the default configuration of a method with a variant's fields."""
    config = mount(base_config(), variant["model"])
    config.update_from_flattened_dict(variant)
    return config


def built(config: ConfigDict, vocabulary_size: int):
    """Returns the configured model with its optimisers; its layers have the names that a fresh process gives."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build_model(config, vocabulary_size)
    compile_model(model, config)
    return model


def losses(model, batch: dict) -> dict[str, np.ndarray]:
    """The part "losses" of one model."""
    values = prefixed("initial", named(own_variables(model)))
    draw_weights(model)
    embeddings = model.encode(batch, training=False)
    totals, logs = global_losses(model, embeddings, batch, model.optimizers)
    for kind, found in (("embedding", embeddings), ("total", totals), ("log", logs)):
        values.update(prefixed(f"evaluated/{kind}", found))
    names = list(named(model.trainable_variables))
    for chunks in (1, CHUNKS):
        found = compute_gradients(model, batch, tf.constant(SEED, tf.int32), chunks, model.optimizers)
        values.update(prefixed(f"chunks_{chunks}/log", found.logs))
        for optimizer, gradients in found.by_optimizer.items():
            reached = {name: gradient for name, gradient in zip(names, gradients) if gradient is not None}
            values.update(prefixed(f"chunks_{chunks}/gradient/{optimizer}", reached))
        for layer, moments in found.moments.items():
            values.update(prefixed(f"chunks_{chunks}/moments/{layer.name}", dict(zip(("mean", "variance"), moments))))
    values.update(prefixed("step/log", model.train_step(batch)))
    values.update(prefixed("step/variable", named(own_variables(model))))
    for name, optimizer in model.optimizers.items():
        values.update(prefixed(f"step/optimizer_{name}", named(optimizer.variables())))
    return values


def own_variables(model) -> list[tf.Variable]:
    """The model's variables without those that sum up its logs, which have no names of their own."""
    sums = {variable.ref() for metric in model.metrics for variable in metric.variables}
    return [variable for variable in model.variables if variable.ref() not in sums]


def checkpoint_keys(model) -> dict:
    """The part "keys" of one model: {key: [type, shape]} of everything in its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = training_checkpoints(model, pathlib.Path(folder), keep=1)
        checkpoints.save(1)
        checkpoints.wait()
        reader = tf.train.load_checkpoint(list_checkpoints(pathlib.Path(folder) / "checkpoints")[-1])
    types = reader.get_variable_to_dtype_map()
    return {key: [types[key].name, shape] for key, shape in sorted(reader.get_variable_to_shape_map().items())}


def draw_weights(model) -> None:
    """Gives each variable values that follow from its name; none is 0 or 1, as biases and moving averages are."""
    fixed = [v for v in model.non_trainable_variables if "moving_" in v.name or "original_vectors" in v.name]
    drawn = [v for v in model.trainable_variables if "log_temperature" not in v.name] + fixed
    for name, variable in named(drawn).items():
        draw, shape = np.random.default_rng(zlib.crc32(name.encode())), tuple(variable.shape)
        if len(shape) < 2:
            positive = "gamma" in name or "variance" in name
            value = draw.uniform(0.5, 1.5, shape) if positive else draw.normal(scale=0.1, size=shape)
        else:
            inputs = np.prod(shape[:-1]) if shape[-1] > 1 else np.prod(shape[:-2])
            value = draw.normal(scale=inputs**-0.5, size=shape)
        variable.assign(value.astype(np.float32))


def tokenizer_of(variant: dict):
    """A tokenizer of a hundred word pieces, or of twenty words in each of two languages."""
    if has_words(variant):
        words = [f"{language}\t{word}{i}" for language, word in (("en", "w"), ("de", "v")) for i in range(WORDS)]
        return WordTokenizer(["[PAD]", "en\t[UNK]", "de\t[UNK]", *words], LANGUAGES, max_length=LENGTH)
    words = ["thing", "ding", "w", "v", *(f"##{i}" for i in range(91))]
    return WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], max_length=LENGTH)


SIDE, LENGTH, FEATURES, WORDS = 32, 8, 12, 20
LANGUAGES = ("en", "de")
EXAMPLES = 16


def under(branch: str, **fields) -> dict:
    """{"branch.field": value}."""
    return {f"{branch}.{name}": value for name, value in fields.items()}


SMALL = {
    "embedding_size": 80,
    **under("image_tower", width=0.25, depth=0.25, image_size=SIDE, resize=SIDE + 8, batch_norm_momentum=0.5),
    **under("text_tower", layers=1, hidden_size=32, heads=2, feed_forward_size=64, max_length=LENGTH, dropout=0.1),
    **under("text_tower", length_groups=2, precision="float32"),
    **under("image_tower", precision="float32"),
    **under("loss", temperature=0.1),
    **under("optimizer", name="adamw", learning_rate=3e-3, text_text_learning_rate=1e-3, warmup_steps=2),
    **under("train", steps=30, image_text_batch=EXAMPLES, text_text_batch=EXAMPLES),
}
DEEP = {  # draws in both towers, and an optimiser and a step as in pretraining
    **under("image_tower", depth=0.6, drop_connect_rate=0.5, batch_norm_group="4"),
    **under("text_tower", layers=2, token_embedding_size=16),
    **under("loss", label_smoothing=0.1),
    **under("optimizer", name="lamb", clip_norm=1.0, image_tower_rate=0.5),
}
TRIPLES = {
    **under("loss", image_text_weight=1 / 3, text_text_weight=1 / 3),
    **under("train", micro_batches=CHUNKS),
}
VIEWS = {
    **under("image_tower", head_size=80),
    **under("text_tower", pooling="first_and_mean"),
    **under("loss", text_text_weight=1.0, image_text_weight=0.2),
    **under("method", image_image_weight=0.3, cloze_weight=0.4),
}
ONE_HEAD = {
    "shared_head": True,
    **under("text_tower", pooling="first"),
    **under("loss", mask_duplicates=False),
    # With a smaller margin, nearly every pair here is a positive.
    **under("method", alpha="paper", alpha_divided=False, alpha_margin=0.5, view_anchors="first"),
}
WORD_VECTORS = {
    "embedding_size": 24,
    **under("image_tower", name="features", feature_size=FEATURES, branch_size=32, projection=24),
    **under("text_tower", name="words", languages=LANGUAGES, word_size=16, language_size=20),
    **under("text_tower", hidden_size=24, projection=24),
    **under("loss", text_text_weight=0.0),
    **under("method", captions_per_image=2),
    **under("optimizer", decay_rate=0.5, decay_steps=1),
}
TEXT_PAIRS = {
    **under("loss", text_text_weight=1.0),
    **under("text_tower", word_vectors="vectors/{language}.vec", recurrent="gru"),  # read by `begin` only
    **under("method", word_vectors_weight=0.5),
    **under("train", micro_batches=CHUNKS),
}
LP = {
    **under("loss", image_text_weight=0.0, text_text_weight=1.0),
    **under("method", neighbourhood_weight=0.0, neighbourhood_levels=("words",), language_weight=0.0),
    **under("text_tower", frozen_words=True),
}
TEXT_TEXT = under("loss", text_text_weight=1.0)


def variant_of(method: str, *fields: dict) -> dict:
    """A method with the fields of this use of it."""
    made = {"model": method, **SMALL, **(WORD_VECTORS if method in ("mule", "embn", "parallel_embn") else {})}
    made.update(under("method", language_weight=0.1) if method == "mule" else {})
    for some in fields:
        made.update(some)
    return made


def has_words(variant: dict) -> bool:
    """Whether its texts are words of languages, and its images features."""
    return variant.get("text_tower.name") == "words"


VARIANTS = {
    "align": variant_of("align", under("optimizer", name="adam"), under("text_tower", length_groups=1)),
    "mural": variant_of("mural", DEEP),
    "mural_per_task": variant_of("mural", under("optimizer", mode="per_task", clip_norm=0.5)),
    "mural_image_text": variant_of("mural", under("loss", text_text_weight=0.0), under("image_tower", frozen=True)),
    "etcl": variant_of("etcl", TRIPLES),
    "etcl_shared_head": variant_of("etcl", TRIPLES, {"shared_head": True}, under("loss", mask_duplicates=False)),
    "labse": variant_of(
        "labse",
        TEXT_TEXT,
        under("image_tower", name="none", projection=80, head_size=0),
        under("text_tower", pooler=True),
    ),
    "globetrotter": variant_of("globetrotter", DEEP, VIEWS),
    "globetrotter_paper": variant_of("globetrotter", VIEWS, ONE_HEAD),
    "globetrotter_pairs": variant_of(
        "globetrotter", VIEWS, under("method", alpha="pairs"), under("image_tower", name="resnet")
    ),
    "mule": variant_of("mule"),
    "mule_text_pairs": variant_of("mule", TEXT_PAIRS),
    "mule_lp": variant_of("mule", LP),
    "embn": variant_of("embn"),
    "parallel_embn": variant_of(
        "parallel_embn", under("text_tower", language_branches="parallel"), under("method", distance="cosine")
    ),
}
EXPORTED = {
    "mural": variant_of("mural", DEEP),
    "globetrotter": variant_of("globetrotter", VIEWS),
    "mule": variant_of("mule", TEXT_TEXT),
}


def fixed_batch(variant: dict) -> dict:
    """What any method of the variant's kind takes from a batch, with repeated ids, in tensors."""
    draw = np.random.default_rng(0)
    batch = word_batch(draw, variant) if has_words(variant) else piece_batch(draw)
    for name in ("text_a", "text_b"):
        batch[f"{name}_id"] = repeated_ids(draw, EXAMPLES)
    batch["text_group_id"] = np.arange(EXAMPLES)
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


def word_batch(draw: np.random.Generator, variant: dict) -> dict:
    """Features of half as many images, and texts of words; one place of a caption is empty."""
    images, languages = EXAMPLES // 2, len(variant["text_tower.languages"])
    captions = images * variant["method.captions_per_image"]
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


def inputs_of(variant: dict) -> dict[str, tf.Tensor]:
    """Inputs of every signature by name; one picture is damaged, one text is empty, one too long."""
    draw = np.random.default_rng(1)
    if has_words(variant):
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


def export(variant: dict) -> tuple[dict, dict]:
    """The part "export" of one model: (signatures, what they give)."""
    config, tokenizer = configured(variant), tokenizer_of(variant)
    model, signatures, values = built(config, tokenizer.vocabulary_size), {}, {}
    draw_weights(model)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = export_model(model, tokenizer, config, pathlib.Path(folder) / "export")
        for encoder in ("image_encoder", "text_encoder"):
            for name, function in tf.saved_model.load(str(path / encoder / "1")).signatures.items():
                inputs = function.structured_input_signature[1]
                signatures[f"{encoder}/{name}/inputs"] = described(inputs)
                signatures[f"{encoder}/{name}/outputs"] = described(function.structured_outputs)
                fixed = {key: inputs_of(variant)[key] for key in inputs}
                values.update(prefixed(f"{encoder}/{name}", function(**fixed)))
    return signatures, values


def prefixed(prefix: str, values: dict) -> dict[str, np.ndarray]:
    """Copies of tensors, and of variables as they are now, under "prefix/name"."""
    return {f"{prefix}/{name}": np.array(value) for name, value in values.items()}


def named(variables) -> dict[str, tf.Variable]:
    """Variables by their names; a name that occurs again has its count behind it."""
    counts, found = collections.Counter(), {}
    for variable in variables:
        counts[variable.name] += 1
        count = counts[variable.name]
        found[variable.name if count == 1 else f"{variable.name}#{count}"] = variable
    return found


def described(tensors: dict) -> dict:
    """{name: [type, shape]} of tensors, specifications or variables."""
    return {name: [value.dtype.name, list(value.shape)] for name, value in sorted(tensors.items())}


def contents(parts: list[str], methods: list[str]) -> Iterator[tuple[str, dict]]:
    """Computes the chosen parts: (name of a file, the arrays or values for JSON that it holds)."""

    def chosen(variants: dict) -> dict:
        return {name: v for name, v in variants.items() if not methods or {name, v["model"]} & set(methods)}

    for name, variant in chosen(VARIANTS).items() if {"losses", "keys"} & set(parts) else ():
        model = built(configured(variant), tokenizer_of(variant).vocabulary_size)
        if "keys" in parts:
            yield f"keys/{name}.json", checkpoint_keys(model)
        if "losses" in parts:
            before = set_fusion("off")  # compiling for every shape takes longer than all the rest
            yield f"losses/{name}.npz", losses(model, fixed_batch(variant))
            set_fusion(before)
    for name, variant in chosen(EXPORTED).items() if "export" in parts else ():
        signatures, values = export(variant)
        yield f"export/{name}.json", signatures
        yield f"export/{name}.npz", values


def keep(path: pathlib.Path, content: dict) -> None:
    """Writes one file of a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **content)
    else:
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def kept(path: pathlib.Path) -> dict:
    """Reads what `keep` wrote; nothing where there is nothing."""
    if not path.exists():
        return {}
    return dict(np.load(path)) if path.suffix == ".npz" else json.loads(path.read_text(encoding="utf-8"))


def differences(before: dict, after: dict) -> Iterator[str]:
    """Yields a line for every entry in which two files' contents differ."""
    for name in {**before, **after}:
        if name not in after or name not in before:
            yield f"{name}: {'new' if name in after else 'gone'}"
            continue
        one, other = before[name], after[name]
        if not isinstance(one, np.ndarray):
            if one != other:
                yield f"{name}: {one} became {other}"
        elif (one.dtype, one.shape) != (other.dtype, other.shape):
            yield f"{name}: {one.dtype} {list(one.shape)} became {other.dtype} {list(other.shape)}"
        elif not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
            count = f"{np.count_nonzero(apart)} of {apart.size}"
            yield f"{name}: {count} differ, by up to {apart.max():.3g} (largest {np.abs(one).max():.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help=f"beginnings of parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--methods", default="", help="methods or variants, with commas; empty: all")
    arguments = parser.parse_args()
    parts = [part for part in PARTS if part.startswith(tuple(arguments.only.split(",")))]
    methods = [method for method in arguments.methods.split(",") if method]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    files = entries = found = 0
    for name, content in contents(parts, methods):
        files += 1
        if arguments.command == "write":
            keep(arguments.folder / name, content)
            continue
        before = kept(arguments.folder / name)
        entries += len(before)
        for line in differences(before, content):
            found += 1
            print(f"{name} {line}", flush=True)
    if arguments.command == "write":
        print(f"Kept {files} files in {arguments.folder}.")
    else:
        print(f"{found or 'No'} differences in {entries:,} entries of {files} files.")
        sys.exit(1 if found or not entries else 0)


if __name__ == "__main__":
    main()
