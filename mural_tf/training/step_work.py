"""What a step of a built model is made of: rows of a batch, parameters, operations of each tower, bytes of memory.

Read off traced graphs (`graph_costs.py`) at the sizes that each replica would see, whatever machine this is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.streams.pipeline import batch_size
from mural_tf.encoders.layers import forward_pass
from mural_tf.models.dual_encoder import TEXT_PAIRS, DualEncoder, trainable_parameters
from mural_tf.training.graph_costs import Costs, gradient_costs
from mural_tf.training.tpu_check import example_batch

IMAGES, TEXTS, LOSSES = "image tower", "text tower", "losses"
TOWERS = (IMAGES, TEXTS)
ACTIVATIONS, GRADIENTS = "activations", "gradients"  # in memory


def parameters(model: DualEncoder) -> dict[str, int]:
    """Returns {part of the model: its trainable numbers}."""
    counted = {}
    for name, part in model.weights_by_part().items():
        variables = part.trainable_variables if hasattr(part, "trainable_variables") else [part]
        counted[name] = sum(variable.shape.num_elements() for variable in variables)
    rest = trainable_parameters(model) - sum(counted.values())
    return {**counted, **({"others": rest} if rest > 0 else {})}


def rows_of_parts(model: DualEncoder, config: ConfigDict) -> dict[str, int]:
    """Returns {part of a batch: its rows in the global batch}."""
    group = config.method.get("captions_per_image", 1)
    return {
        part: batch_size(config, stream) // (group if part in model.image_parts else 1)
        for part, stream in _stream_of(model).items()
    }


def tower_of(model: DualEncoder, part: str) -> str:
    """Returns the tower that takes a part of a batch; functions in place of towers take texts."""
    return IMAGES if part in model.image_parts else TEXTS


def _stream_of(model: DualEncoder) -> dict[str, str]:
    """Returns {part of a batch: the stream that brings it}."""
    streams = {}
    for name in model.loss_weights():
        task = model.tasks[name]
        for embedding in task.compares:
            streams.setdefault(model.embeddings[embedding].part, task.stream)
    return streams


def _specs(model: DualEncoder, config: ConfigDict, parts: int) -> dict:
    """Returns the specs of a global batch's `parts`-th part, {name: nest of `tf.TensorSpec`}."""
    streams, group = _stream_of(model), config.method.get("captions_per_image", 1)
    others = {"image_id": model.streams[0], "text_group_id": TEXT_PAIRS}

    def spec(name, value):
        of_part = name.removesuffix("_id").removesuffix("_language")
        stream = streams.get(of_part) or others.get(name, model.streams[0])
        times = batch_size(config, stream) // (1 if stream == TEXT_PAIRS else group) // parts
        return tf.TensorSpec([value.shape[0] * times, *value.shape[1:]], value.dtype)

    example = example_batch(model, config, 1)
    example = {name: value for name, value in example.items() if not name.endswith(("_place", "_tally"))}
    return {name: tf.nest.map_structure(lambda v, n=name: spec(n, v), value) for name, value in example.items()}


def step_work(model: DualEncoder, config: ConfigDict, replicas: int, length: int) -> dict[str, Costs]:
    """Returns the costs of a replica's step: of one chunk in each tower, and of the whole batch in the losses.

    Args:
      model: compiled.
      config: its `train.micro_batches` are the chunks.
      replicas: that share the batch.
      length: tokens of a text, padding included.
    """
    at_length = config.copy_and_resolve_references()
    at_length.text_tower.max_length = length
    specs = _specs(model, at_length, replicas * config.train.micro_batches)
    with _known_sizes(model, specs):
        work = _tower_costs(model, specs)
    return {**work, LOSSES: _loss_costs(model, _specs(model, at_length, 1), replicas)}


@contextlib.contextmanager
def _known_sizes(model: DualEncoder, specs: Mapping) -> Iterator[None]:
    """Texts of one length, and BatchNorm's groups within one replica, which costs the same."""
    groups, model.text_tower.length_groups = model.text_tower.length_groups, 1
    layers = {layer: layer.group for layer in model.normalization_layers()}
    rows = min((tf.nest.flatten(specs[part])[0].shape[0] for part in model.image_parts), default=0)
    for layer, group in layers.items():
        layer.group = group if isinstance(group, int) and rows % group == 0 else "local"
    try:
        yield
    finally:
        model.text_tower.length_groups = groups
        for layer, group in layers.items():
            layer.group = group


def _tower_costs(model: DualEncoder, specs: Mapping) -> dict[str, Costs]:
    """Returns the costs of encoding a batch of such specs, by tower."""

    def encode(batch):
        with forward_pass(tf.constant([0, 0])):
            return model.encode(batch, training=True)

    groups = {
        tower: [name for name, each in model.used.items() if tower_of(model, each.part) == tower] for tower in TOWERS
    }
    groups = {tower: names for tower, names in groups.items() if names}
    return gradient_costs(encode, [specs], groups, model.trainable_variables)


def _loss_costs(model: DualEncoder, specs: Mapping, replicas: int) -> Costs:
    """Of the objective of a replica's rows: it sees the embeddings of the whole batch."""
    counts = {name: tf.nest.flatten(specs[part])[0].shape[0] for name, (part, _) in model.embedding_shapes.items()}
    embeddings = {name: tf.TensorSpec([counts[name], width]) for name, (_, width) in model.embedding_shapes.items()}
    rows = {name: (0, count // replicas) for name, count in counts.items()}

    def objective(embeddings, ids):
        losses, _ = model.objective(embeddings, ids, rows)
        return {"loss": tf.add_n(list(losses.values()))}

    ids = {name: spec for name, spec in specs.items() if name.endswith("_id")}
    return gradient_costs(objective, [embeddings, ids], {LOSSES: ["loss"]})[LOSSES]


def tower_operations(costs: Costs, chunks: int) -> dict[str, float]:
    """Returns {dtype: operations} of a replica's step in a tower: in chunks it runs forward twice."""
    names = {*costs.forward, *costs.backward}
    forward = 2 if chunks > 1 else 1
    return {name: chunks * (forward * costs.forward.get(name, 0.0) + costs.backward.get(name, 0.0)) for name in names}


def memory_of_replica(
    model: DualEncoder, config: ConfigDict, replicas: int, work: Mapping[str, Costs]
) -> dict[str, float]:
    """Returns {what: bytes}; `work` is that of `step_work`."""
    trainable, chunks = 4 * trainable_parameters(model) * len(model.optimizers), config.train.micro_batches
    moments = [weight for optimizer in model.optimizers.values() for weight in optimizer.weights]
    towers = [work[tower] for tower in TOWERS if tower in work]
    batch = _specs(model, config, replicas)
    return {
        "weights": _bytes(model.weights),
        "moments": _bytes(moments),
        GRADIENTS: float(trainable * (2 if chunks > 1 else 1)),  # the sum, and a chunk's
        "weights in the compute precision": float(sum(costs.copies for costs in towers)),
        ACTIVATIONS: float(sum(costs.kept for costs in towers)),
        LOSSES: float(work[LOSSES].kept + work[LOSSES].copies),
        "batches": 2.0 * _bytes(tf.nest.flatten(batch)),  # one is trained on, one is on its way
    }


def _bytes(values) -> float:
    return float(sum(value.shape.num_elements() * value.dtype.size for value in values))
