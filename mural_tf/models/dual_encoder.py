"""`DualEncoder`: two towers, and the two tables in which a method lists its embeddings and its comparisons.

A method is a subclass with

    embeddings  {name: `Embedding`}: which part of a batch, by which tower and head
    tasks       {name: `Task`}: the stream that feeds it, and the embeddings that it compares
    <task>_loss(*compared, ids)  for each task: its loss of the compared embeddings, `Rows` of the global batch
    fields      {name: default} of its own settings; they mount below `config.method`

and everything else follows: the parts of a batch that are needed, their way through the towers (each tower once), the
heads, the weighted sum of the losses ([MURAL] Eq. 1), the numbers that are logged. `Align` is the smallest one. The
training step is in `step.py`; docs/a_method_in_an_hour.md writes a method from nothing.

`keras_model.py` has Keras' side, `compile`, `fit`, `save` and so on; `temperature.py` the temperature of most methods;
`frozen.py` trains heads on vectors that frozen towers made once.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config import takes_features
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.adapters import text_adapter
from mural_tf.encoders.by_length import encode_by_length, stack_ids
from mural_tf.encoders.layers import BatchNormalization, unit_range
from mural_tf.losses.pairs import Pairs, Rows, in_batch_recall
from mural_tf.models.keras_model import KerasModel
from mural_tf.text.tokens import TOKENS

TEXT_PAIRS = "text_text"  # the stream of text pairs; `DualEncoder.streams` has it last, in any order of the tasks


class Embedding(NamedTuple):
    """How a part of a batch becomes embeddings, L2-normalised float32 [B, D].

    part: the name of an image or of tokens in the batch.
    head: a head of the text tower; "" for an image, which needs only the image tower.
    function: the name of a member `(tokens, training) -> float32 [B, width]` that embeds in place of tower and head.
    is_given: whether the batch holds the embedding itself, of a column of vectors (`DualEncoder.columns`).
    """

    part: str
    head: str = ""
    function: str = ""
    is_given: bool = False

    @property
    def is_image(self) -> bool:
        """Whether the image tower embeds it."""
        return not (self.head or self.function or self.is_given)


class Task(NamedTuple):
    """A comparison of embeddings by one loss.

    stream: the data that feeds it, see `data/streams/pipeline.py`.
    compares: names of embeddings, which `<task>_loss` takes in this order; the rows of the first are the queries.
    pair: two of them whose in-batch recall is logged; `None`: none.
    """

    stream: str
    compares: tuple[str, ...]
    pair: tuple[str, str] | None = None


class DualEncoder(KerasModel):
    """Base of all methods.

    Args:
      image_encoder: float32 [B, S, S, 3] in [0, 1], or features [B, F] → float32 [B, D]; D must be `embedding_size`.
      text_encoder: {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T], or features → float32 [B, H].
      config: the configuration's parts that a method reads: `loss`, `method` (its own fields), `embedding_size`,
        `shared_head`, `image_size` and `text_tower`, which `models.assemble` takes out of the tree,
        `vocabulary_size`, and `names_classes`: whether the image tower compares class names with texts (ConSE).
    """

    embeddings: Mapping[str, Embedding] = {}
    tasks: Mapping[str, Task] = {}
    fields: ClassVar[Mapping] = {}
    title: ClassVar[str] = ""  # of the model card: the method and its paper; by default the docstring's first line
    starts_from: ClassVar[str] = ""  # for a stage: which trained models it can start from, in words for an error
    sized_by: ClassVar[str] = "captions"  # or `TEXT_PAIRS`: their number sets the batch and the steps of fine-tuning
    also_reads: tuple[str, ...] = ()  # further entries of a batch that a loss needs, besides parts and ids
    with_towers: DualEncoder | None = None  # of a model on features: the model whose heads it has, see `frozen.py`

    def __init__(self, image_encoder: keras.Model, text_encoder: keras.Model, config: ConfigDict, **kwargs):
        super().__init__(**kwargs)
        width = image_encoder.output_shape[-1]
        if width != config.embedding_size:
            raise UserError(
                f"The image tower gives {width} numbers and embedding_size is {config.embedding_size}: set "
                f"--config.embedding_size={width}, or let --config.image_tower.projection={config.embedding_size} "
                "project the image."
            )
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.loss_config = config.loss
        self.options = config.method
        self.text_tower = config.text_tower
        self.embedding_size = config.embedding_size
        self.shared_head = config.shared_head
        self.names_classes = config.get("names_classes", False)
        self.image_shape = image_encoder.input_shape[1:]
        if self.image_shape[0] is None:  # pictures of any size
            self.image_shape = (config.image_size, config.image_size, 3)
        for name in self.head_names:
            setattr(self, f"{name}_head", self.build_head(name))
        self.vocabulary_size = config.get("vocabulary_size", 0)

    @property
    def towers(self) -> DualEncoder:
        """The model that is evaluated, exported and saved: `with_towers` of a model on features, else this model."""
        return self.with_towers or self

    # These follow from the two tables.

    @classmethod
    def has_image_text_head(cls) -> bool:
        """Whether the text tower has the head "image_text", whose vectors are compared with images."""
        if isinstance(cls.embeddings, property):  # they depend on the configuration: such a method overrides this
            return False
        return any(embedding.head == "image_text" for embedding in cls.embeddings.values())

    @classmethod
    def may_start_from(cls, source: type[DualEncoder]) -> bool:
        """Whether training by this method may begin with the weights of a trained model of the class `source`."""
        return not cls.starts_from

    def loss_weights(self) -> dict[str, float]:
        """Returns {task: weight} of the tasks whose weight is not 0; raises `UserError` if all weights are 0."""
        weights = {task: self._weight(task) for task in self.tasks}
        if not any(weights.values()):
            raise UserError(f"{type(self).__name__} without any loss: set one of its weights above 0.")
        return {task: weight for task, weight in weights.items() if weight}

    def _weight(self, task: str) -> float:
        """Returns `method.<task>_weight`, or `loss.<task>_weight` if the method has no such field."""
        name = f"{task}_weight"
        if name in self.options:
            return self.options[name]
        return self.loss_config[name]

    @property
    def used(self) -> dict[str, Embedding]:
        """{name: `Embedding`} of the embeddings that tasks with a weight compare."""
        names = set()
        for task in self.loss_weights():
            names.update(self.tasks[task].compares)
        return {name: embedding for name, embedding in self.embeddings.items() if name in names}

    @property
    def parts(self) -> tuple[str, ...]:
        """The entries of a batch that `encode` takes."""
        return _unique(embedding.part for embedding in self.used.values())

    @property
    def image_parts(self) -> tuple[str, ...]:
        """The image entries of `parts`."""
        return _unique(embedding.part for embedding in self.used.values() if embedding.is_image)

    @property
    def token_parts(self) -> tuple[str, ...]:
        """The entries of `parts` that are tokens, {name: int32 [B, T]}; empty with a text tower of features."""
        if takes_features(self.text_tower):
            return ()
        return _unique(embedding.part for embedding in self.used.values() if embedding.head or embedding.function)

    @property
    def text_parts(self) -> tuple[str, ...]:
        """The entries of `parts` whose texts go through the text tower and a head."""
        return _unique(embedding.part for embedding in self.used.values() if embedding.head)

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of data that batches come from, text pairs last."""
        names = _unique(self.tasks[task].stream for task in self.loss_weights())
        return tuple(sorted(names, key=lambda name: name == TEXT_PAIRS))  # False before True, else as they are

    @property
    def head_names(self) -> tuple[str, ...]:
        """The names of the text tower's heads; with `shared_head` only the first, which then takes all texts."""
        names = _unique(embedding.head for embedding in self.embeddings.values() if embedding.head)
        return names[:1] if self.shared_head else names

    @property
    def embedding_shapes(self) -> dict[str, tuple[str, int]]:
        """{embedding: (the part of the batch that it comes from, its width)}."""
        shapes = {}
        for name, embedding in self.used.items():
            shapes[name] = (embedding.part, self.width(embedding.head or embedding.function))
        return shapes

    # A method may override these.

    def build_head(self, name: str) -> keras.layers.Layer:
        """Returns a new head of the text tower, [B, H] to [B, D]: an adapter, one layer, or an MLP ([MURAL] A.1)."""
        layer_name = f"{name}_head"
        if self.text_tower.adapter_size:
            state_size = self.text_encoder.embedding_size if self.names_classes else 0  # only ConSE keeps the state
            return text_adapter(self.text_tower, self.embedding_size, state_size, layer_name)
        return text_head(self.embedding_size, self.text_tower.head_hidden_size, layer_name)

    def width(self, head: str) -> int:
        """Returns how many numbers a head, or an `Embedding.function` of this name, gives."""
        return self.embedding_size

    def begin(self, tokenizer, restored: bool) -> None:
        """Prepares the method for a new run; called once, before the run's first step.

        Args:
          tokenizer: the run's tokenizer.
          restored: whether the run's weights come from another run or an export.
        """

    def columns(self, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> dict[str, tuple]:
        """Returns {entry of a batch: (its `Column` of vectors, the entry with its ids)} of embeddings that `is_given`.

        Called whenever a run starts or goes on, after `compile`, with the weights that it goes on from. `config` is the
        run's whole tree, and vectors that are made for it may be kept in its `workdir`.
        """
        return {}

    def variable_groups(self) -> dict[str, list[tf.Variable]]:
        """Returns {group: variables} of the variables whose learning rate can be set apart."""
        return {
            "image_tower": self.image_encoder.trainable_variables,
            "text_tower": self.text_encoder.trainable_variables,
        }

    def weights_by_part(self) -> dict[str, tf.Module | tf.Variable]:
        """Returns {name: part} of a trained model: towers, heads, numbers. Checkpoints hold these."""
        heads = {f"{name}_head": self.text_head(name) for name in self.head_names}
        return {"image_encoder": self.image_encoder, "text_encoder": self.text_encoder, **heads}

    def training_parts(self) -> dict[str, tf.Module | tf.Variable]:
        """Returns {name: part} of further parts that only training needs, for example a teacher.

        The checkpoints of training hold these and `weights_by_part`; an export holds only `weights_by_part`.
        """
        return {}

    # The two functions that the training step takes.

    def encode(self, batch: dict, training: bool) -> dict[str, tf.Tensor]:
        """Returns {name: L2-normalised float32 [B, D]} of the embeddings in use, each row from one example.

        All images go through their tower in one pass (one BatchNorm group), and all texts through theirs; the tower
        of the embedding that is declared first runs first, which fixes the order of random draws.
        """
        return self._encode(batch, training, self.used)

    def _encode(self, batch: Mapping, training: bool, used: dict[str, Embedding]) -> dict[str, tf.Tensor]:
        """Returns {name: L2-normalised float32 [B, D]} of the embeddings in `used`, as `encode`."""
        through_towers = [embedding for embedding in used.values() if embedding.is_image or embedding.head]
        outputs = {}  # {part: its tower's output}
        for is_image in _unique(embedding.is_image for embedding in through_towers):  # once per tower
            parts = _unique(embedding.part for embedding in through_towers if embedding.is_image == is_image)
            run_tower = self._embed_together if is_image else self.text_states
            tower_outputs = run_tower([batch[part] for part in parts], training)
            outputs.update(zip(parts, tower_outputs))
        return {name: self._embed(embedding, batch, outputs, training) for name, embedding in used.items()}

    def _embed(self, embedding: Embedding, batch: Mapping, outputs: Mapping, training: bool) -> tf.Tensor:
        """Returns one embedding of a batch, float32 [B, D]; `outputs` is {part: its tower's output}."""
        if embedding.function:
            return getattr(self, embedding.function)(batch[embedding.part], training)
        if embedding.is_given:
            return batch[embedding.part]
        if embedding.is_image:
            return outputs[embedding.part]
        head = self.head_names[0] if self.shared_head else embedding.head
        return self.project_texts(outputs[embedding.part], head, training)

    def _embed_together(self, batches: list[tf.Tensor], training: bool) -> list[tf.Tensor]:
        """Returns the embeddings of batches of images, equally many in each, from one pass: a list of [B, D]."""
        if len(batches) == 1:
            return [self.embed_images(batches[0], training)]
        return tf.split(self.embed_images(tf.concat(batches, axis=0), training), len(batches))

    def objective(
        self, embeddings: dict, ids: dict, rows: dict[str, tuple]
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns {task: weighted loss}, the terms of [MURAL] Eq. 1, and the logs {name: scalar}.

        Args:
          embeddings: {name: [N, D]}, as `encode` returns them, of the global batch.
          ids: {name: integers [N]}, equal for duplicates, such as "image_id" and "caption_id".
          rows: {name: (first, count)}, the rows that are this replica's queries. A loss sums over them and divides by
            N, so that the replicas' losses add up to the batch's.
        """
        sides = {name: Rows.of(values, rows[name]) for name, values in embeddings.items()}
        weighted = {}
        logs = {}
        for task, weight in self.loss_weights().items():
            compared = [sides[name] for name in self.tasks[task].compares]
            loss = getattr(self, f"{task}_loss")(*compared, ids)
            weighted[task] = weight * loss
            logs[f"loss_{task}"] = loss
        logs["loss"] = tf.add_n(list(weighted.values()))
        for task, (query, candidate) in self.compared_pairs().items():
            logs[f"recall@1_{task}"] = in_batch_recall(Pairs(sides[query], sides[candidate]))
        return weighted, logs

    @property
    def log_names(self) -> list[str]:
        """The names of the numbers that `objective` and `state_logs` log."""
        losses = [f"loss_{task}" for task in self.loss_weights()]
        recalls = [f"recall@1_{task}" for task in self.compared_pairs()]
        return [*losses, "loss", *self.state_logs(), *recalls]

    def compared_pairs(self) -> dict[str, tuple[str, str]]:
        """Returns {task: (query, candidate)} of the tasks that are on and compare two embeddings."""
        return {task: self.tasks[task].pair for task in self.loss_weights() if self.tasks[task].pair}

    def same(self, ids: dict, *names) -> tuple:
        """Returns `Pairs.same`, the ids that keep true matches out of the negatives; () without `mask_duplicates`.

        Args:
          ids: {name: integers [N]} of the batch.
          names: a name of ids that a pair has as a whole, such as "image_id"; or two names, ("text_a_id", "text_b_id"),
            of the ids of left and of right sides, which are compared with each other.
        """
        if not self.loss_config.mask_duplicates:
            return ()
        return tf.nest.map_structure(lambda name: ids[name], names)  # two names become two ids

    def same_texts(self, ids: dict) -> tuple:
        """Returns `Pairs.same` of text pairs: two pairs are not each other's negatives where they may mean the same.

        They may if they have one "text_group_id" (captions of one image, translations of one sentence), or if a text of
        one pair is a text of the other.
        """
        return self.same(ids, "text_group_id", "text_a_id", "text_b_id", ("text_a_id", "text_b_id"))

    def state_logs(self) -> dict[str, tf.Tensor]:
        """Returns {name: scalar} of learned numbers that are logged in every step."""
        return {}

    # For evaluation and export.

    def embed_images(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D]."""
        return image_embeddings(self.image_encoder, images, training)

    def embed_texts(self, tokens: dict, head: str = "", training: bool = False) -> tf.Tensor:
        """Maps tokens, {name: int32 [B, T]}, to L2-normalised float32 [B, D] by a head; "": the first head."""
        (states,) = self.text_states([tokens], training)
        return self.project_texts(states, head or self.head_names[0], training)

    def text_states(self, batches: list[dict], training: bool) -> list[tf.Tensor]:
        """Returns the text tower's states of several batches, from one pass: a list of float32 [B_i, H].

        Args:
          batches: tokens {name: int32 [B_i, T_i]}; with a text tower of features their states, float32 [B_i, H], which
            are returned as they are.
          training: whether the tower is in training.
        """
        if takes_features(self.text_tower):
            return [self.text_encoder(features) for features in batches]
        tokens = {}
        for name in TOKENS:
            tokens[name] = stack_ids([batch[name] for batch in batches])
        groups = self.text_tower.length_groups if training else 1
        states = encode_by_length(self.text_encoder, tokens, groups, training, self.compiled_lengths)
        return tf.split(states, [tf.shape(batch[TOKENS[0]])[0] for batch in batches])

    def project_texts(self, states: tf.Tensor, head: str, training: bool = False) -> tf.Tensor:
        """Maps states of the text tower, float32 [B, H], through the head `head` to L2-normalised float32 [B, D]."""
        values = self.text_head(head)(states, training=training)
        return tf.math.l2_normalize(tf.cast(values, tf.float32), axis=-1)

    def text_head(self, name: str) -> keras.layers.Layer:
        """Returns a projection head of the text tower by its name; raises `ValueError` if it is missing."""
        head = getattr(self, f"{name}_head", None)
        if head is None:
            raise ValueError(f"{type(self).__name__} has no {name!r} head.")
        return head

    def build_variables(self) -> None:
        """Creates every variable by running one example through each tower and head."""
        tokens = {name: tf.ones([1, 4], tf.int32) for name in TOKENS}  # 4 pieces: no variable depends on it
        self.embed_images(tf.zeros([1, *self.image_shape]))
        for name in self.head_names:
            self.embed_texts(tokens, name)
        self.built = True

    def normalization_layers(self) -> list[BatchNormalization]:
        """Returns the image tower's BatchNorm layers that compute statistics in training; [] if no image is read."""
        if not self.image_parts:
            return []
        layers = self.image_encoder._flatten_layers(include_self=False)  # also layers within layers
        return [layer for layer in layers if isinstance(layer, BatchNormalization) and layer.trainable]


def text_head(size: int, hidden: int, name: str) -> keras.layers.Layer:
    """Returns a new layer [B, H] to [B, `size`]: dense, or an MLP of width `hidden` if that is above 0.

    [MURAL] A.1 gives neither the MLP's width nor its non-linearity; here it has one hidden layer with GELU.
    """
    last = keras.layers.Dense(size, name=name)
    if not hidden:
        return last
    first = keras.layers.Dense(hidden, activation="gelu", name=f"{name}_hidden")
    return keras.Sequential([first, last], name=name)


def _unique(values: Iterable) -> tuple:
    """Returns the different values, in the order in which they come first."""
    return tuple(dict.fromkeys(values))


def trainable_parameters(model: DualEncoder) -> int:
    """Returns how many numbers training may change: no averages of BatchNorm and no bookkeeping."""
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)


def image_embeddings(tower: keras.Model, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D] by a tower."""
    embeddings = tf.cast(tower(unit_range(images), training=training), tf.float32)
    return tf.math.l2_normalize(embeddings, axis=-1)
