"""A net for rewriting the project: keeps what the code computes, and compares what it computes later, bit for bit.

    python -m benchmarks.equality write FOLDER      # keeps what today's code computes
    python -m benchmarks.equality compare FOLDER    # computes again; exit code 1 and one line for every difference

The project is deterministic, so a rewrite that should change nothing can be held to equality. For every method and
variant, on one fixed batch: the initial weights; embeddings, losses and logs; gradients and BatchNorm's moments in one
pass and in four chunks; logs and all variables after one training step; names, shapes and types in the checkpoint. For
three of them also the signatures of an export and their results. `--methods=mural,mule_lp` chooses.

Models and batches are the tests' (`tests/contract.py`), with weights drawn here by name, so that the order in
which a model is built does not matter. One thread computes. Numbers still depend on the processor and on TensorFlow's
version: compare where you wrote. A rewrite may move fields on purpose: then change their names in the variants below.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
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

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))  # small models and batches

import contract
import toy_export

from mural_tf.backend import keras
from mural_tf.encoders.kernels import set_fusion
from mural_tf.export.saved_model import export_model
from mural_tf.models.step import compute_gradients, global_losses
from mural_tf.training.checkpoints import list_checkpoints, training_checkpoints

SEED = (3, 4)  # of the draws in the fixed batch's passes
CHUNKS = 4
EXAMPLES = 16


def under(branch: str, **fields) -> dict:
    """Returns {"branch__field": value}, as `contract.toy_config` takes it."""
    return {f"{branch}__{name}": value for name, value in fields.items()}


PICTURES = under("image_tower", name="efficientnet", width=0.25, depth=0.25, image_size=32, resize=40)
DEEP = {  # draws in both towers, and an optimiser and a step as in pretraining
    **PICTURES,
    **under("image_tower", depth=0.6, drop_connect_rate=0.5, batch_norm_group="4"),
    **under("text_tower", layers=2, token_embedding_size=16, length_groups=2),
    **under("loss", label_smoothing=0.1),
    **under("optimizer", name="lamb", clip_norm=1.0),
}
SHARED = {"shared_head": True, **under("loss", mask_duplicates=False)}
PAPER = under("method", alpha="paper", alpha_divided=False)
LP = {
    **under("loss", image_text_weight=0.0, text_text_weight=1.0),
    **under("method", neighbourhood_weight=0.0, neighbourhood_levels=("words",), language_weight=0.0),
    **under("text_tower", frozen_words=True),
}
VIT = under("image_tower", name="vit", image_size=32, patch_size=16, layers=1, hidden_size=16, heads=2)
VARIANTS = {  # further variants of methods, next to each method as `contract` makes it
    "mural_deep": ("mural", DEEP),
    "mural_per_task": ("mural", under("optimizer", mode="per_task", clip_norm=0.5)),
    "mural_image_text": ("mural", PICTURES | under("loss", text_text_weight=0.0) | under("image_tower", frozen=True)),
    "align_vit": ("align", VIT | under("image_tower", feed_forward_size=32) | under("text_tower", pooling="mean")),
    "etcl_shared_head": ("etcl", SHARED),
    "labse_pooler": ("labse", under("text_tower", pooler_size=16)),
    "globetrotter_deep": ("globetrotter", DEEP | under("image_tower", head_size=24)),
    "globetrotter_paper": ("globetrotter", SHARED | PAPER | under("text_tower", pooling="first")),
    "globetrotter_pairs": ("globetrotter", PICTURES | under("image_tower", name="resnet") | {"method__alpha": "pairs"}),
    "mule_decay": ("mule", under("optimizer", decay=(0.5, 1))),
    "mule_lp": ("mule", LP),
    "parallel_embn_cosine": ("parallel_embn", under("method", distance="cosine")),
}
EXPORTED = ("mural_deep", "globetrotter_deep", "mule")


def computed_values(model, batch: dict) -> dict[str, np.ndarray]:
    """Returns {name of a value: array} of a model's initial weights and of everything that it computes from a batch.

    That is, after new weights by `draw_weights`: embeddings, losses and logs; gradients and moments in one pass and in
    `CHUNKS` chunks; and logs and variables after one training step, which changes the model.
    """
    values = prefixed("initial", named(own_variables(model)))
    draw_weights(model)
    embeddings = model.encode(batch, training=False)
    totals, logs = global_losses(model, embeddings, batch, model.optimizers)
    values.update(prefixed("evaluated/embedding", embeddings))
    values.update(prefixed("evaluated/total", totals))
    values.update(prefixed("evaluated/log", logs))
    for chunks in (1, CHUNKS):
        values.update(prefixed(f"chunks_{chunks}", _gradients(model, batch, chunks)))
    values.update(prefixed("step/log", model.train_step(batch)))
    values.update(prefixed("step/variable", named(own_variables(model))))
    for name, optimizer in model.optimizers.items():
        values.update(prefixed(f"step/optimizer_{name}", named(optimizer.variables())))
    return values


def _gradients(model, batch: dict, chunks: int) -> dict[str, np.ndarray]:
    """Returns {name: array} of a batch's logs, gradients and BatchNorm's moments, computed in so many chunks."""
    names = list(named(model.trainable_variables))
    result = compute_gradients(model, batch, tf.constant(SEED, tf.int32), chunks, model.optimizers)
    values = prefixed("log", result.logs)
    for optimizer, gradients in result.by_optimizer.items():
        by_variable = {name: gradient for name, gradient in zip(names, gradients) if gradient is not None}
        values.update(prefixed(f"gradient/{optimizer}", by_variable))
    for layer, (mean, variance) in result.moments.items():
        values.update(prefixed(f"moments/{layer.name}", {"mean": mean, "variance": variance}))
    return values


def own_variables(model) -> list[tf.Variable]:
    """Returns the model's variables without the sums of its logs, which have no names of their own."""
    sums = {variable.ref() for metric in model.metrics for variable in metric.variables}
    return [variable for variable in model.variables if variable.ref() not in sums]


def draw_weights(model) -> None:
    """Gives each weight and average random values, which its name seeds, in place of the exact 0 and 1 of a new model.

    Temperatures stay, and so do counters and other variables that do not enter into embeddings.
    """
    drawn = []
    for variable in model.trainable_variables:
        if "log_temperature" not in variable.name:
            drawn.append(variable)
    for variable in model.non_trainable_variables:
        if "moving_" in variable.name or "original_vectors" in variable.name:
            drawn.append(variable)
    for name, variable in named(drawn).items():
        generator = np.random.default_rng(zlib.crc32(name.encode()))
        shape = tuple(variable.shape)
        if len(shape) >= 2:
            # A depthwise kernel [height, width, channels, 1] has height x width inputs.
            inputs = np.prod(shape[:-1]) if shape[-1] > 1 else np.prod(shape[:-2])
            value = generator.normal(scale=inputs**-0.5, size=shape)
        elif "gamma" in name or "variance" in name:  # positive
            value = generator.uniform(0.5, 1.5, shape)
        else:
            value = generator.normal(scale=0.1, size=shape)
        variable.assign(value.astype(np.float32))


def checkpoint_keys(model) -> dict[str, np.ndarray]:
    """Returns {"key/NAME": array of one text, its type and shape} of everything in a checkpoint of the model."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = training_checkpoints(model, pathlib.Path(folder), keep=1)
        checkpoints.save(1)
        checkpoints.wait()
        reader = tf.train.load_checkpoint(list_checkpoints(pathlib.Path(folder) / "checkpoints")[-1])
    types = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {f"key/{key}": np.array(f"{types[key].name} {shape}") for key, shape in shapes.items()}


def export_values(config, model, batch: dict) -> dict[str, np.ndarray]:
    """Exports a model; returns {name: array} of its signatures, types and shapes as texts, and of their results.

    For the arguments see `export_inputs`.
    """
    tokenizer = contract.tokenizer(config)
    inputs = export_inputs(config, model, batch, tokenizer)
    values = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = export_model(model, tokenizer, config, pathlib.Path(folder) / "export")
        for encoder in ("image_encoder", "text_encoder"):
            for name, function in tf.saved_model.load(str(path / encoder / "1")).signatures.items():
                _, parameters = function.structured_input_signature
                for side, tensors in (("in", parameters), ("out", function.structured_outputs)):
                    types = {key: f"{tensor.dtype.name} {tensor.shape}" for key, tensor in tensors.items()}
                    values.update(prefixed(f"export/{encoder}/{name}/{side}", types))
                results = function(**{key: inputs[key] for key in parameters})
                values.update(prefixed(f"export/{encoder}/{name}", results))
    return values


def export_inputs(config, model, batch: dict, tokenizer) -> dict[str, tf.Tensor]:
    """Returns {parameter of an export's signatures: tensor}; a picture is damaged, a text empty, and a text too long.

    Args:
      config: the model's configuration.
      model: the model.
      batch: a batch of `contract.batch_of`, which has the pixels or features.
      tokenizer: the model's tokenizer.
    """
    texts = ["thing w12", "", "Thing 日本", "<de> v0 " * 9]
    pixels = tf.cast(batch[model.image_parts[0]], tf.float32)
    if config.image_tower.name == "features":
        image_bytes = [row.tobytes() for row in pixels.numpy()]
    else:
        pixels = pixels / 255.0
        image_bytes = [*toy_export.pictures(), b"damaged"]
    inputs = {"image": pixels, "image_bytes": tf.constant(image_bytes), "text": tf.constant(texts)}
    return {**inputs, **tokenizer(texts)}


def prefixed(prefix: str, values: dict) -> dict[str, np.ndarray]:
    """Returns {"prefix/name": array} of {name: tensor, variable or text}; arrays are copies of the present values."""
    return {f"{prefix}/{name}": np.array(value) for name, value in values.items()}


def named(variables) -> dict[str, tf.Variable]:
    """Returns {name: variable}; the second variable of a name is "name#2", the third "name#3"."""
    counts = collections.Counter()
    by_name = {}
    for variable in variables:
        name = variable.name
        counts[name] += 1
        if counts[name] > 1:
            name = f"{name}#{counts[name]}"
        by_name[name] = variable
    return by_name


def contents(chosen: list[str]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields (name of a method or variant, {name of a value: array}) for each of them.

    `chosen`: names of methods, whose variants are included, and of variants; empty: all.
    """
    methods = {method: (method, {}) for method in contract.METHODS}
    for name, (method, fields) in (methods | VARIANTS).items():
        if chosen and not {name, method} & set(chosen):
            continue
        config = contract.toy_config(method, **fields)
        keras.backend.clear_session()  # layers have the names that a fresh process gives
        model = contract.build(config)
        batch = contract.batch_of(model, config, EXAMPLES)
        earlier_fusion = set_fusion("off")  # compiling for every shape takes longer than all the rest
        values = checkpoint_keys(model) | computed_values(model, batch)
        set_fusion(earlier_fusion)
        if name in EXPORTED:
            values.update(export_values(config, model, batch))
        yield name, values


def differences(before: dict, after: dict) -> Iterator[str]:
    """Yields a line for every value that is new, gone or different in `after`; both are {name: array}."""
    for name in {**before, **after}:
        if name not in before:
            yield f"{name}: new"
            continue
        if name not in after:
            yield f"{name}: gone"
            continue
        old = before[name]
        new = after[name]
        if "U" in (old.dtype.kind, new.dtype.kind):  # a text in place of numbers
            if str(old) != str(new):
                yield f"{name}: {old} became {new}"
        elif (old.dtype, old.shape) != (new.dtype, new.shape):
            yield f"{name}: {old.dtype} {list(old.shape)} became {new.dtype} {list(new.shape)}"
        else:
            earlier = old.astype(np.float64)
            later = new.astype(np.float64)
            is_other = ~((earlier == later) | (np.isnan(earlier) & np.isnan(later)))
            if is_other.any():
                largest = np.abs(earlier - later)[is_other].max()
                count = f"{np.count_nonzero(is_other)} of {is_other.size}"
                yield f"{name}: {count} differ, by up to {largest:.3g} (largest {np.nanmax(np.abs(earlier)):.3g})"


def main() -> None:
    """Writes the values that the code computes, or compares them and prints differences, for which it exits with 1.

    It exits with 1, too, if nothing was computed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("write", "compare"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--methods", default="", help="methods or variants, with commas; empty: all")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    entries = 0
    unequal = 0
    for name, content in contents([method for method in arguments.methods.split(",") if method]):
        path = arguments.folder / f"{name.replace(':', '.')}.npz"
        entries += len(content)
        if arguments.command == "write":
            np.savez(path, **content)
            continue
        earlier = dict(np.load(path)) if path.exists() else {}
        for line in differences(earlier, content):
            unequal += 1
            print(f"{name} {line}", flush=True)
    if arguments.command == "compare":
        print(f"{entries:,} entries, {unequal or 'no'} differences")
    else:
        print(f"{entries:,} entries kept")
    sys.exit(1 if unequal or not entries else 0)


if __name__ == "__main__":
    main()
