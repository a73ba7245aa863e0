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
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config import takes_features
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.encoders.adapters import text_adapter
from mural_tf.encoders.layers import BatchNormalization, unit_range
from mural_tf.encoders.packing import encode_by_length, stack_ids
from mural_tf.losses.pairs import Pairs, Rows, in_batch_recall
from mural_tf.models.keras_model import KerasModel
from mural_tf.text.tokens import TOKENS

TEXT_PAIRS = "text_text"  # the stream whose position comes last, in any order of the tasks


class Embedding(NamedTuple):
    """How a part of a batch becomes embeddings, L2-normalised float32 [B, D].

    part: the name of an image or of tokens in the batch.
    head: of the text tower; "" for an image, which the image tower embeds alone.
    made_by: the name of a function of the method, `(tokens, training) -> float32 [B, width]`, in place of both.
    is_given: whether the batch holds the embedding itself, of a column of vectors (`DualEncoder.columns`).
    """

    part: str
    head: str = ""
    made_by: str = ""
    is_given: bool = False


class Task(NamedTuple):
    """What one loss compares.

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
      image_encoder: float32 [B, S, S, 3] in [0, 1], or features [B, F] → float32 [B, D].
      text_encoder: {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T], or features → float32 [B, H].
      config: the configuration's parts that a method reads: `loss`, `method` (its own fields), `embedding_size`,
        `shared_head`, `image_size` and `text_tower`, which `models.build_model` takes out of the tree, and
        `vocabulary_size`.
    """

    embeddings: Mapping[str, Embedding] = {}
    tasks: Mapping[str, Task] = {}
    fields: ClassVar[Mapping] = {}
    title: ClassVar[str] = ""  # of the model card: the method and its paper; by default the docstring's first line
    starts_from: ClassVar[str] = ""  # of a stage: what trained models it begins with, in words; see `may_start_from`
    sized_by: ClassVar[str] = "captions"  # what fine-tuning's batch and steps follow from; or `TEXT_PAIRS`
    also_reads: tuple[str, ...] = ()  # further entries of a batch that a loss needs, besides parts and ids
    with_towers: DualEncoder | None = None  # of a model on features: the model whose heads it has, see `frozen.py`

    def __init__(self, image_encoder: keras.Model, text_encoder: keras.Model, config: ConfigDict, **kwargs):
        super().__init__(**kwargs)
        if image_encoder.output_shape[-1] != config.embedding_size:
            raise UserError(
                f"The image tower gives {image_encoder.output_shape[-1]} numbers and embedding_size is "
                f"{config.embedding_size}: set --config.embedding_size={image_encoder.output_shape[-1]}, or let "
                f"--config.image_tower.projection={config.embedding_size} project the image."
            )
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.loss_config, self.options, self.text_tower = config.loss, config.method, config.text_tower
        self.embedding_size = config.embedding_size
        self.shared_head = config.shared_head
        self.names_classes = config.get("names_classes", False)
        side = config.image_size
        self.image_shape = (side, side, 3) if image_encoder.input_shape[1] is None else image_encoder.input_shape[1:]
        for name in self.head_names:
            setattr(self, f"{name}_head", self.build_head(name))
        self.vocabulary_size = config.get("vocabulary_size", 0)

    @property
    def towers(self) -> DualEncoder:
        """The model that is evaluated, exported and saved: itself, or the model with the towers."""
        return self.with_towers or self

    # What follows from the two tables.

    @classmethod
    def has_image_text_head(cls) -> bool:
        """Whether a head of the text tower, "image_text", brings texts to where images are."""
        table = {} if isinstance(cls.embeddings, property) else cls.embeddings  # such a method has to say
        return any(embedding.head == "image_text" for embedding in table.values())

    @classmethod
    def may_start_from(cls, source: type[DualEncoder]) -> bool:
        """Whether this stage may begin with the weights of a trained model of the class `source`."""
        return not cls.starts_from

    def loss_weights(self) -> dict[str, float]:
        """Returns {task: weight} of the tasks that are on: their `<task>_weight` is not 0.

        A weight is a field of the method's own or of `config.loss`. Raises `UserError` if all are 0.
        """
        weights = {task: self._weight(task) for task in self.tasks}
        if not any(weights.values()):
            raise UserError(f"{type(self).__name__} without any loss: set one of its weights above 0.")
        return {task: weight for task, weight in weights.items() if weight}

    def _weight(self, task: str) -> float:
        name = f"{task}_weight"
        return self.options[name] if name in self.options else self.loss_config[name]

    @property
    def used(self) -> dict[str, Embedding]:
        """The embeddings that a task which is on compares."""
        names = {name for task in self.loss_weights() for name in self.tasks[task].compares}
        return {name: embedding for name, embedding in self.embeddings.items() if name in names}

    @property
    def parts(self) -> tuple[str, ...]:
        """The entries of a batch that `encode` takes."""
        return tuple(dict.fromkeys(embedding.part for embedding in self.used.values()))

    @property
    def image_parts(self) -> tuple[str, ...]:
        """The image entries of `parts`."""
        return tuple(dict.fromkeys(e.part for e in self.used.values() if not (e.head or e.made_by or e.is_given)))

    @property
    def token_parts(self) -> tuple[str, ...]:
        """The entries of `parts` that are tokens, {name: int32 [B, T]}; empty with a text tower of features."""
        texts = () if takes_features(self.text_tower) else self.used.values()
        return tuple(dict.fromkeys(e.part for e in texts if e.head or e.made_by))

    @property
    def text_parts(self) -> tuple[str, ...]:
        """The entries of `parts` that are texts which the tower reads whole."""
        return tuple(dict.fromkeys(e.part for e in self.used.values() if e.head and not e.made_by))

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of data that batches come from, text pairs last."""
        names = dict.fromkeys(self.tasks[task].stream for task in self.loss_weights())
        return tuple(sorted(names, key=lambda name: name == TEXT_PAIRS))

    @property
    def head_names(self) -> tuple[str, ...]:
        """The heads of the text tower; the first compares texts with images, and with `shared_head` all texts."""
        names = tuple(dict.fromkeys(e.head for e in self.embeddings.values() if e.head))
        return names[:1] if self.shared_head else names

    @property
    def embedding_shapes(self) -> dict[str, tuple[str, int]]:
        """{embedding: (the part of the batch that it comes from, its width)}."""
        return {name: (e.part, self.width(e.head or e.made_by)) for name, e in self.used.items()}

    # What a method may change.

    def build_head(self, name: str) -> keras.layers.Layer:
        """Returns a new head of the text tower, [B, H] to [B, D]: one layer, or an MLP ([MURAL] A.1 tried both)."""
        tower, name = self.text_tower, f"{name}_head"
        if tower.adapter_size:
            named_size = self.text_encoder.embedding_size if self.names_classes else 0
            return text_adapter(tower, self.embedding_size, named_size, name)
        return text_head(self.embedding_size, tower.head_hidden_size, name)

    def width(self, head: str) -> int:
        """The width of the output of a head, or of a function of `Embedding.made_by`."""
        return self.embedding_size

    def begin(self, tokenizer, restored: bool) -> None:
        """Called once, before a run's first step; `restored`: its weights come from another run or an export."""

    def columns(self, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> dict[str, tuple]:
        """Called at every start of a compiled model, with the weights that it goes on from.

        Returns {entry of a batch: (its `Column` of vectors, the entry with its ids)}, which `Embedding.is_given` takes.
        """
        return {}

    def variable_groups(self) -> dict[str, list[tf.Variable]]:
        """Returns the variables whose learning rate can be set apart, by group."""
        return {
            "image_tower": self.image_encoder.trainable_variables,
            "text_tower": self.text_encoder.trainable_variables,
        }

    def weights_by_part(self) -> dict[str, tf.Module | tf.Variable]:
        """Returns what a trained model consists of, by name: towers, heads, numbers. Checkpoints hold these."""
        heads = {f"{name}_head": self.text_head(name) for name in self.head_names}
        return {"image_encoder": self.image_encoder, "text_encoder": self.text_encoder, **heads}

    def training_parts(self) -> dict[str, tf.Module | tf.Variable]:
        """Returns what a compiled model needs for the rest of its training alone, by name, such as a teacher.

        The checkpoints of training hold these and `weights_by_part`; an export does not.
        """
        return {}

    # The two functions that the training step takes.

    def encode(self, batch: dict, training: bool) -> dict[str, tf.Tensor]:
        """Returns {name: L2-normalised float32 [B, D]} of the embeddings in use, each row from one example alone.

        All images go through their tower in one pass (one BatchNorm group), and all texts through theirs; the tower
        of the embedding that is declared first draws first.
        """
        return self._encode(batch, training, self.used)

    def _encode(self, batch: Mapping, training: bool, used: dict[str, Embedding]) -> dict[str, tf.Tensor]:
        states, embeddings = {}, {}
        through_towers = [e for e in used.values() if not (e.made_by or e.is_given)]
        for is_text in dict.fromkeys(bool(e.head) for e in through_towers):
            parts = tuple(dict.fromkeys(e.part for e in through_towers if bool(e.head) == is_text))
            values = [batch[name] for name in parts]
            embed = self.text_states if is_text else self._embed_together
            states.update(zip(parts, embed(values, training)))
        for name, (part, head, made_by, is_given) in used.items():
            if made_by:
                embeddings[name] = getattr(self, made_by)(batch[part], training)
            elif is_given:
                embeddings[name] = batch[part]
            elif head:
                head = head if head in self.head_names else self.head_names[0]  # shared_head
                embeddings[name] = self.project_texts(states[part], head, training)
            else:
                embeddings[name] = states[part]
        return embeddings

    def _embed_together(self, batches: list[tf.Tensor], training: bool) -> list[tf.Tensor]:
        if len(batches) == 1:
            return [self.embed_images(batches[0], training)]
        return tf.split(self.embed_images(tf.concat(batches, axis=0), training), len(batches))

    def objective(
        self, embeddings: dict, ids: dict, rows: dict[str, tuple]
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns {task: weighted loss}, the terms of [MURAL] Eq. 1, and the logs {name: scalar}.

        Args:
          embeddings: what `encode` gives of the global batch, [N, D].
          ids: integer [N] each, by which duplicates are known, such as "image_id" and "caption_id".
          rows: {name: (first, count)}, the queries to sum over; results are divided by the number of all, so that
            parts add up to the whole.
        """
        weights = self.loss_weights()
        sides = {name: Rows.of(values, rows[name]) for name, values in embeddings.items()}
        losses = {
            task: getattr(self, f"{task}_loss")(*(sides[name] for name in self.tasks[task].compares), ids)
            for task in weights
        }
        weighted = {task: weights[task] * loss for task, loss in losses.items()}
        logs = {**{f"loss_{task}": loss for task, loss in losses.items()}, "loss": tf.add_n(list(weighted.values()))}
        for task, (query, candidate) in self.compared_pairs().items():
            logs[f"recall@1_{task}"] = in_batch_recall(Pairs(sides[query], sides[candidate]))
        return weighted, logs

    @property
    def log_names(self) -> list[str]:
        """The names of what `objective` and `state_logs` log."""
        losses = [*(f"loss_{task}" for task in self.loss_weights()), "loss"]
        return [*losses, *self.state_logs(), *(f"recall@1_{task}" for task in self.compared_pairs())]

    def compared_pairs(self) -> dict[str, tuple[str, str]]:
        """Returns {task: (query, candidate)} of the tasks that are on and compare two embeddings."""
        return {task: self.tasks[task].pair for task in self.loss_weights() if self.tasks[task].pair}

    def same(self, ids: dict, *names) -> tuple:
        """Returns the ids by which `Pairs` keeps true matches out of the negatives; none without `mask_duplicates`.

        A name means ids that both sides of a pair share; two names mean the ids of its left and right side, which
        are looked up across.
        """
        if not self.loss_config.mask_duplicates:
            return ()
        return tuple(ids[name] if isinstance(name, str) else tuple(ids[side] for side in name) for name in names)

    def same_texts(self, ids: dict) -> tuple:
        """Returns the ids that say which text pairs are not negatives.

        Pairs are not negatives if they mean the same ("text_group_id": captions of one image, translations of one
        sentence), or have equal texts, on one side or across.
        """
        return self.same(ids, "text_group_id", "text_a_id", "text_b_id", ("text_a_id", "text_b_id"))

    def state_logs(self) -> dict[str, tf.Tensor]:
        """Returns {name: scalar} of learned numbers that are logged in every step."""
        return {}

    # What evaluation and export use.

    def embed_images(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D]."""
        return image_embeddings(self.image_encoder, images, training)

    def embed_texts(self, tokens: dict, head: str = "", training: bool = False) -> tf.Tensor:
        """Maps tokens, int32 [B, T], through the text tower and a head, by default the first, to float32 [B, D]."""
        return self.project_texts(self.text_states([tokens], training)[0], head or self.head_names[0], training)

    def text_states(self, batches: list[dict], training: bool) -> list[tf.Tensor]:
        """Runs batches of tokens, int32 [B_i, T_i], through the text tower in one pass: a list of float32 [B_i, H].

        A tower of features takes float32 [B_i, H], and gives them.
        """
        if takes_features(self.text_tower):
            return [self.text_encoder(features) for features in batches]
        tokens = {name: stack_ids([batch[name] for batch in batches]) for name in TOKENS}
        groups = self.text_tower.length_groups if training else 1
        states = encode_by_length(self.text_encoder, tokens, groups, training, self.compiled_lengths)
        return tf.split(states, [tf.shape(batch[TOKENS[0]])[0] for batch in batches])

    def project_texts(self, states: tf.Tensor, head: str, training: bool = False) -> tf.Tensor:
        """Maps states of the text tower through one head to L2-normalised float32 [B, D]."""
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
        tokens = {name: tf.ones([1, 4], tf.int32) for name in TOKENS}
        self.embed_images(tf.zeros([1, *self.image_shape]))
        for name in self.head_names:
            self.embed_texts(tokens, name)
        self.built = True

    def normalization_layers(self) -> list[BatchNormalization]:
        """The layers that compute statistics in training."""
        layers = self.image_encoder._flatten_layers(include_self=False) if self.image_parts else ()
        return [layer for layer in layers if isinstance(layer, BatchNormalization) and layer.trainable]


def text_head(size: int, hidden: int, name: str) -> keras.layers.Layer:
    """Returns a layer [B, H] to [B, `size`] or, with `hidden` above 0, an MLP.

    [MURAL] A.1 gives neither the MLP's width nor its non-linearity; here it is one hidden layer with GELU.
    """
    last = keras.layers.Dense(size, name=name)
    if not hidden:
        return last
    first = keras.layers.Dense(hidden, activation="gelu", name=f"{name}_hidden")
    return keras.Sequential([first, last], name=name)


def trainable_parameters(model: DualEncoder) -> int:
    """Returns how many numbers training may change: no averages of BatchNorm and no bookkeeping."""
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)


def image_embeddings(tower: keras.Model, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D] by a tower."""
    return tf.math.l2_normalize(tf.cast(tower(unit_range(images), training=training), tf.float32), axis=-1)
