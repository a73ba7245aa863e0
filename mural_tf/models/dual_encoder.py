"""`DualEncoder`: two towers, and the two tables in which a method says what it embeds and what it compares.

A method is a subclass with

    embeddings  {name: `Embedding`}: which part of a batch, by which tower and head
    tasks       {name: `Task`}: the stream that feeds it, and the embeddings that it compares
    <task>_loss(*compared, ids)  for each task: its loss of what it compares, `Rows` of the whole global batch
    fields      {name: default} of the settings that are its own; they mount below `config.method`

and everything else follows: the parts of a batch that are needed, their way through the towers (each tower once), the
heads, the weighted sum of the losses ([MURAL] Eq. 1), the numbers that are logged. `Align` is the smallest one. The
training step is in `step.py`; docs/a_method_in_an_hour.md writes a method from nothing.

It is a Keras model: `compile`, `fit`, `evaluate`, `predict`, `model(batch)`, `save`; docs/keras.md shows them.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.backend import keras
from mural_tf.config import base_config, parse_config
from mural_tf.data.images import unit_range
from mural_tf.encoders import IMAGE_HEAD
from mural_tf.encoders.adapters import Adapter, TextAdapter, read_class_names
from mural_tf.encoders.layers import BatchNormalization
from mural_tf.encoders.packing import encode_by_length, stack_ids
from mural_tf.errors import UserError
from mural_tf.losses.pairs import Pairs, Rows, in_batch_recall
from mural_tf.models.step import Meters, StepGuard, TrainingStep, WeightAverage, global_losses
from mural_tf.optimizers import JOINT, build_optimizers, create_variables
from mural_tf.text.word_pieces import TOKENS

TEXT_PAIRS = "text_text"  # the stream whose position comes last, whatever the order of the tasks
CONTENT_IDS = {  # ids that losses look up: the part whose content they stand for
    "image_id": "image",
    "caption_id": "caption",
    "text_a_id": "text_a",
    "text_b_id": "text_b",
    "text_group_id": "text_a",
}


class Embedding(NamedTuple):
    """How a part of a batch becomes embeddings, L2-normalised float32 [B, D].

    part: the name of an image or of tokens in the batch.
    head: of the text tower; "" for an image, which the image tower embeds alone.
    made_by: the name of a function of the method, `(tokens, training) -> float32 [B, width]`, in place of both.
    """

    part: str
    head: str = ""
    made_by: str = ""


class Task(NamedTuple):
    """What one loss compares.

    stream: the data that feeds it, see `data/streams/pipeline.py`.
    compares: names of embeddings, which `<task>_loss` takes in this order; the rows of the first are the queries.
    pair: two of them whose in-batch recall is logged; `None`: none.
    """

    stream: str
    compares: tuple[str, ...]
    pair: tuple[str, str] | None = None


class DualEncoder(keras.Model):
    """Base of all methods.

    Args:
      image_encoder: float32 [B, S, S, 3] in [0, 1], or features [B, F] → float32 [B, D].
      text_encoder: {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T] → float32 [B, H].
      config: the configuration's parts that a method reads: `loss`, `method` (its own fields), `embedding_size`,
        `shared_head`, `image_size` and `text_tower`, which `models.build_model` takes out of the tree, and
        `vocabulary_size`.
    """

    embeddings: Mapping[str, Embedding] = {}
    tasks: Mapping[str, Task] = {}
    fields: ClassVar[Mapping] = {}
    title: ClassVar[str] = ""  # of the model card: the method and its paper; by default the docstring's first line
    starts_from: ClassVar[str] = ""  # of a stage: what trained models it begins with, in words; see `may_start_from`
    trains: ClassVar[bool] = True  # False: its weights follow from the data without a step, by `learn`
    sized_by: ClassVar[str] = "captions"  # what fine-tuning's batch and steps follow from; or `TEXT_PAIRS`
    log_names: tuple[str, ...] = ()  # of `measures`
    caches_images: bool = False  # whether the states of pictures are made before the first step; set by `image_tower`
    unusable_images: Sequence[int] = ()  # then, the ids of pictures that do not decode
    known_texts = None  # of a run that caches the states of texts: their `TargetTable`
    also_reads: tuple[str, ...] = ()  # entries of a batch beside parts and ids without which a loss cannot be computed
    pictures = None  # of a bridge, before its first step: an `Embedder` of the model that its images' side comes from
    configuration: ConfigDict | None = None  # the whole tree that `models.build_model` built this of

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
        self.caches_images = config.get("cached_images", False)
        self.loss_config, self.options, self.text_tower = config.loss, config.method, config.text_tower
        self.embedding_size = config.embedding_size
        self.shared_head = config.shared_head
        self.names_classes = config.get("names_classes", False)
        side = config.image_size
        self.image_shape = (side, side, 3) if image_encoder.input_shape[1] is None else image_encoder.input_shape[1:]
        for name in self.head_names:
            setattr(self, f"{name}_head", self.build_head(name))
        self._check_cached()
        self._batch_spec = None
        self.vocabulary_size = config.get("vocabulary_size", 0)
        self.compiled_lengths: tuple[int, ...] = ()
        self.step: TrainingStep | None = None  # of a compiled model
        self.progress = None  # in the data: what `note`s every batch that is trained, see training/checkpoints.py
        self.optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self.meters = Meters(())

    # What follows from the two tables.

    @classmethod
    def has_image_text_head(cls) -> bool:
        """Tells whether a head of the text tower, "image_text", brings texts to where images are."""
        table = {} if isinstance(cls.embeddings, property) else cls.embeddings  # such a method has to say
        return any(embedding.head == "image_text" for embedding in table.values())

    @classmethod
    def may_start_from(cls, source: type[DualEncoder]) -> bool:
        """Tells whether this stage may begin with the weights of a trained model of the class `source`."""
        return not cls.starts_from

    def loss_weights(self) -> dict[str, float]:
        """Returns {task: weight} of the tasks that are on, those whose `<task>_weight` is not 0.

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
        """Those of `parts` that are images."""
        return tuple(dict.fromkeys(e.part for e in self.used.values() if not (e.head or e.made_by)))

    @property
    def caches_texts(self) -> bool:
        """Whether the states of texts are made before the first step."""
        return self.text_tower.cached

    @property
    def vector_parts(self) -> dict[str, int]:
        """{entry of a batch, float32 [B, width], that `completer` adds: its width}: the states that are cached."""
        widths = dict.fromkeys(self.image_parts, self._image_head_and_width()[1]) if self.caches_images else {}
        if self.caches_texts:
            widths |= dict.fromkeys(self.text_parts, self.text_encoder.embedding_size)
        return widths

    @property
    def text_parts(self) -> tuple[str, ...]:
        """Those of `parts` that are texts which the tower reads whole."""
        return tuple(dict.fromkeys(e.part for e in self.used.values() if e.head and not e.made_by))

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of data that batches come from, text pairs last."""
        names = dict.fromkeys(self.tasks[task].stream for task in self.loss_weights())
        return tuple(sorted(names, key=lambda name: name == TEXT_PAIRS))

    @property
    def head_names(self) -> tuple[str, ...]:
        """The heads of the text tower; the first compares texts with images."""
        return tuple(dict.fromkeys(e.head for e in self.embeddings.values() if e.head))

    @property
    def embedding_shapes(self) -> dict[str, tuple[str, int]]:
        """{embedding: (the part of the batch that it comes from, its width)}."""
        return {name: (e.part, self.width(e.head or e.made_by)) for name, e in self.used.items()}

    # What a method may change.

    def build_head(self, name: str) -> keras.layers.Layer:
        """Returns a new head of the text tower, [B, H] to [B, D]: one layer, or an MLP ([MURAL] A.1 tried both)."""
        tower = self.text_tower
        if tower.adapter_size:
            settings = tower.adapter_dropout, tower.adapter_noise
            if self.names_classes:
                size = self.embedding_size - self.text_encoder.embedding_size
                return TextAdapter(tower.adapter_size, size, *settings, name=f"{name}_head")
            return Adapter(tower.adapter_size, self.embedding_size, *settings, name=f"{name}_head")
        return text_head(self.embedding_size, tower.head_hidden_size, f"{name}_head")

    def width(self, head: str) -> int:
        """The width of what a head, or a function of `Embedding.made_by`, gives."""
        return self.embedding_size

    def measures(self, embeddings: dict[str, Rows], ids: dict) -> dict[str, tf.Tensor]:
        """Returns {name of `log_names`: scalar} to log, which add up over replicas; arguments as of losses."""
        return {}

    def begin(self, tokenizer, restored: bool) -> None:
        """Called once, before a run's first step; `restored`: its weights come from another run or an export."""

    def learn(self, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> None:
        """Of a method that does not train: takes what it needs from the data; called where `begin` is, after it."""

    def completer(self, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> Callable[[dict], dict] | None:
        """Called at every start of a compiled model, with the weights that it goes on from.

        Returns what adds `vector_parts` to a global batch of the streams, still on the host; `None`: it has all.
        """
        tables = self.state_tables(config, tokenizer, workdir)
        if not tables:
            return None
        ids = {part: name for name, part in CONTENT_IDS.items() if part in tables and name != "text_group_id"}
        return lambda batch: {**batch, **{part: tables[part].take(batch[name]) for part, name in ids.items()}}

    def state_tables(self, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> dict:
        """Returns {part: `TargetTable`} of the states that are cached, made now or before."""
        tables, both = {}, (config, tokenizer, workdir, self.streams)
        if not (self.caches_texts or self.caches_images):
            return tables
        from mural_tf.data.streams import states  # for runs, which most readers and users of a method do without

        if self.caches_texts and self.text_parts:
            digest, width = states.digest_of(self.text_encoder.variables), self.text_encoder.embedding_size
            encode = lambda tokens: self.text_states([tokens], False)[0]  # noqa: E731
            self.known_texts = states.text_states(*both, encode, digest, width)
            tables |= dict.fromkeys(self.text_parts, self.known_texts)
        if self.caches_images and self.image_parts:
            tower, width = self._image_state_tower(), self._image_head_and_width()[1]
            digest = states.digest_of(tower.variables)
            encode = lambda images: tower(unit_range(images), training=False)  # noqa: E731
            table, self.unusable_images = states.image_states(*both, encode, digest, width)
            tables |= dict.fromkeys(self.image_parts, table)
        return tables

    def standardize_adapters(self, config: ConfigDict, tokenizer, workdir: pathlib.Path) -> None:
        """Gives new adapters the mean and deviation of the states that they will see; called once, before `compile`.

        Raises `UserError` for an adapter over states that are not cached.
        """
        heads = {"image_tower": [self._image_head_and_width()[0]] if self.image_parts else []}
        heads["text_tower"] = [self.text_head(name) for name in self.head_names]
        adapters = {tower: [head for head in layers if isinstance(head, Adapter)] for tower, layers in heads.items()}
        cached = {
            "image_tower": (self.caches_images, self.image_parts),
            "text_tower": (self.caches_texts, self.text_parts),
        }
        tables = self.state_tables(config, tokenizer, workdir) if any(adapters.values()) else {}
        for tower, layers in adapters.items():
            is_cached, parts = cached[tower]
            if layers and not is_cached:
                raise UserError(
                    f"{tower}.adapter_size: a new adapter takes the mean and deviation of states that are made before: "
                    f"set {tower}.frozen=True and {tower}.cached=True."
                )
            for layer in layers if parts else ():
                layer.standardize(tables[parts[0]].sample())
        if self.names_classes and self.image_parts:
            self._name_classes(config, tokenizer)

    def _name_classes(self, config: ConfigDict, tokenizer) -> None:
        from mural_tf.data.streams.states import of_texts  # as above

        names = [name.encode() for name in read_class_names(config.image_tower.class_names)]
        states = of_texts(lambda tokens: self.text_states([tokens], False)[0], tokenizer)(names)
        head, _ = self._image_head_and_width()
        head.name_classes(self.text_head(self.head_names[0]).centred(states))

    def _check_cached(self) -> None:
        if self.caches_texts and (not self.text_tower.frozen or self.text_tower.name == "words"):
            raise UserError("text_tower.cached=True needs text_tower.frozen=True, and a tower other than 'words'.")
        frozen = all(not layer.trainable for layer in self.image_encoder.layers if layer.name != IMAGE_HEAD)
        if self.caches_images and not (frozen and self.image_encoder.layers):
            raise UserError("image_tower.cached=True needs image_tower.frozen=True, and no head but adapter_size's.")

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

        The checkpoints of training hold these beside `weights_by_part`; an export does not.
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
        for is_text in dict.fromkeys(bool(e.head) for e in used.values() if not e.made_by):
            names = tuple(dict.fromkeys(e.part for e in used.values() if bool(e.head) == is_text and not e.made_by))
            values = [batch[name] for name in names]
            if is_text:
                states.update(zip(names, values if self.caches_texts else self.text_states(values, training)))
            else:
                states.update(zip(names, self._image_states(values, training)))
        for name, (part, head, made_by) in used.items():
            if made_by:
                embeddings[name] = getattr(self, made_by)(batch[part], training)
            else:
                embeddings[name] = states[part]
                if head:
                    embeddings[name] = self.project_texts(states[part], self._head_in_use(head), training)
        return embeddings

    def _image_states(self, batches: list[tf.Tensor], training: bool) -> list[tf.Tensor]:
        embed = self.project_images if self.caches_images else self.embed_images
        if len(batches) == 1:
            return [embed(batches[0], training)]
        return tf.split(embed(tf.concat(batches, axis=0), training), len(batches))

    def _head_in_use(self, head: str) -> str:
        return self.head_names[0] if self.shared_head else head

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
        logs.update(self.measures(sides, ids))
        return weighted, logs

    def compared_pairs(self) -> dict[str, tuple[str, str]]:
        """Returns {task: (query, candidate)} of the tasks that are on and compare two embeddings."""
        return {task: self.tasks[task].pair for task in self.loss_weights() if self.tasks[task].pair}

    def same(self, ids: dict, *names) -> tuple:
        """Returns the ids by which `Pairs` keeps true matches out of the negatives; none without `mask_duplicates`.

        A name stands for ids that both sides of a pair share; two names for the ids of its left and right side, which
        are looked up across.
        """
        if not self.loss_config.mask_duplicates:
            return ()
        return tuple(ids[name] if isinstance(name, str) else tuple(ids[side] for side in name) for name in names)

    def same_texts(self, ids: dict) -> tuple:
        """Returns the ids that say which text pairs are not negatives.

        Those of pairs that all say the same ("text_group_id": captions of one image, translations of one sentence), and
        those of equal texts, on one side or across.
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
        """Runs batches of tokens, int32 [B_i, T_i], through the text tower in one pass: a list of float32 [B_i, H]."""
        tokens = {name: stack_ids([batch[name] for batch in batches]) for name in TOKENS}
        groups = self.text_tower.length_groups if training else 1
        states = encode_by_length(self.text_encoder, tokens, groups, training, self.compiled_lengths)
        return tf.split(states, [tf.shape(batch[TOKENS[0]])[0] for batch in batches])

    def project_texts(self, states: tf.Tensor, head: str, training: bool = False) -> tf.Tensor:
        """Maps states of the text tower through one head to L2-normalised float32 [B, D]."""
        layer = self.text_head(head)
        values = layer(states, training=training) if isinstance(layer, Adapter) else layer(states)
        return tf.math.l2_normalize(tf.cast(values, tf.float32), axis=-1)

    def project_images(self, states: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Maps states of the frozen image tower through its head to L2-normalised float32 [B, D]."""
        head, _ = self._image_head_and_width()
        values = head(states, training=training) if isinstance(head, Adapter) else head(states) if head else states
        return tf.math.l2_normalize(tf.cast(values, tf.float32), axis=-1)

    def _image_head_and_width(self) -> tuple[keras.layers.Layer | None, int]:
        """The layer of the image tower that follows its frozen part, if one does, and the width of a state."""
        layers = [layer for layer in self.image_encoder.layers if layer.name == IMAGE_HEAD]
        return (layers[0], layers[0].input_shape[-1]) if layers else (None, self.image_encoder.output_shape[-1])

    def _image_state_tower(self) -> keras.Model:
        """The frozen part of the image tower: float32 [B, S, S, 3] → float32 [B, width]."""
        head, _ = self._image_head_and_width()
        return keras.Model(self.image_encoder.input, head.input) if head else self.image_encoder

    def text_head(self, name: str) -> keras.layers.Layer:
        """Returns a projection head of the text tower by its name; raises `ValueError` if there is none."""
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

    # Keras' contract.

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        *,
        optimizers: Mapping[str, keras.optimizers.Optimizer] | None = None,
        clip_norm: float | None = None,
        micro_batches: int | None = None,
        max_skipped_steps: int | None = None,
        seed: int | None = None,
        average_decay: float | None = None,
        compiled_lengths: tuple[int, ...] = (),
        **kwargs,
    ):
        """Takes an optimiser, or none for the configuration's; call it in the strategy's scope.

        Args:
          optimizer: a name or an instance of Keras', old or new: one for all tasks and towers, as it is. In a step that
            is left out because its loss or gradient is not finite, it gets gradients of 0.
          optimizers: in its place {"joint": …}, or one for each task; see `optimizers.build_optimizers`.
          clip_norm, micro_batches, max_skipped_steps, seed: see `TrainingStep` and `StepGuard`; None: the
            configuration's.
          average_decay: above 0 the step keeps a `WeightAverage`; None: the configuration's.
          compiled_lengths: those of `encode_by_length`, where XLA compiles the step.
          kwargs: Keras', such as `run_eagerly` or `steps_per_execution`.

        Raises:
          UserError: a `loss` or `metrics`, which are the method's own, an unknown optimiser, or towers whose weights
            are bfloat16, too coarse for a step.
        """
        own = [name for name in ("loss", "metrics", "weighted_metrics", "loss_weights") if kwargs.get(name) is not None]
        if own:
            raise UserError(
                f"compile({own[0]}=…): the losses of {type(self).__name__} and what it logs are its own; its weights "
                "are fields of the configuration, such as loss.text_text_weight."
            )
        config = self.configuration or base_config()
        if "bfloat16" in (config.image_tower.precision, config.text_tower.precision):
            raise UserError("precision='bfloat16' rounds the weights, for exports: train with 'mixed_bfloat16'.")
        if optimizers is None:
            optimizers = self._chosen_optimizers(optimizer, config)
        self.compiled_lengths = compiled_lengths
        super().compile(optimizer=next(iter(optimizers.values())), **kwargs)
        self.optimizers = dict(optimizers)
        given = lambda value, default: default if value is None else value  # noqa: E731
        decay = given(average_decay, config.train.average_decay)
        self.step = TrainingStep(
            self,
            dict(optimizers),
            StepGuard(given(max_skipped_steps, config.train.max_skipped_steps)),
            given(clip_norm, config.optimizer.clip_norm),
            given(micro_batches, config.train.micro_batches),
            given(seed, config.seed),
            WeightAverage(self.trainable_variables, decay) if decay else None,
        )
        names = [*(f"loss_{task}" for task in self.loss_weights()), "loss", *self.state_logs()]
        names += [f"recall@1_{task}" for task in self.compared_pairs()]
        names += [*self.log_names, *self.step.log_names]
        self.meters = Meters((*names, "data_wait_seconds"))
        self.step.guard.build(names)
        for optimizer in self.optimizers.values():
            create_variables(optimizer, self.trainable_variables)  # so that a checkpoint can be restored before a step

    def _chosen_optimizers(self, optimizer, config: ConfigDict) -> dict[str, keras.optimizers.Optimizer]:
        if optimizer is None:
            return build_optimizers(config.optimizer, config.train.steps, self.variable_groups(), self.loss_weights())
        try:
            return {JOINT: keras.optimizers.get(optimizer)}
        except (ValueError, TypeError):
            raise UserError(
                f"compile(optimizer={optimizer!r}): expected a name of Keras', such as 'adam', an instance of "
                "keras.optimizers, or None for the configuration's."
            ) from None

    def call(self, inputs: Mapping, training: bool = False) -> dict[str, tf.Tensor]:
        """Returns the embeddings, {name: L2-normalised float32 [B, D]}, of the parts that `inputs` has."""
        used = {name: embedding for name, embedding in self.used.items() if embedding.part in inputs}
        if not used:
            raise UserError(f"A batch of {type(self).__name__} holds {', '.join(self.parts)}; got {_names(inputs)}.")
        return self._encode(inputs, training, used)

    def fit(self, x, **kwargs):
        """Keras' `fit`, on batches as `check_batch` has them: a `tf.data.Dataset`, or a dictionary of arrays.

        Raises `UserError` if more steps in a row than `max_skipped_steps` had no finite loss.
        """
        self.check_batch(x)
        spec = getattr(x, "element_spec", None)
        divides = isinstance(x, tf.data.Dataset) and self.distribute_strategy.num_replicas_in_sync > 1
        self._batch_spec = None
        if isinstance(spec, Mapping) and not divides:  # Keras forgets the shapes that x announces
            self._batch_spec = tf.nest.map_structure(
                lambda spec: tf.nest.flatten(spec, expand_composites=True)[0],  # one replica's, where x is distributed
                spec,
            )
        history = super().fit(x, **kwargs)
        self.step.guard.raise_if_stuck()
        return history

    def evaluate(self, x, **kwargs):
        """Keras' `evaluate`: the losses and in-batch recalls, weighted by the sizes of the batches; nothing changes."""
        self.check_batch(x)
        return super().evaluate(x, **kwargs)

    def train_on_batch(self, x, **kwargs):
        """Keras' `train_on_batch`."""
        self.check_batch(x)
        self._batch_spec = None
        return super().train_on_batch(x, **kwargs)

    def test_on_batch(self, x, **kwargs):
        """Keras' `test_on_batch`."""
        self.check_batch(x)
        return super().test_on_batch(x, **kwargs)

    def check_batch(self, x) -> None:
        """Raises `UserError` if batches lack what the losses take.

        They are dictionaries of the entries `parts`: images, uint8 or float in [0, 1] [B, S, S, 3], or features; tokens
        as a tokenizer gives them, {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T]. With them may stand
        integer ids [B], such as "image_id": what is equal there is no negative; without, equal content is. Several
        replicas need batches of one size, which they share evenly.
        """
        found = getattr(x, "element_spec", x)
        found = found[0] if isinstance(found, tuple) and found else found
        if not isinstance(found, Mapping):
            if found is x and not (hasattr(x, "shape") or isinstance(x, Sequence)):
                return  # a generator or the like, of which nothing is known before its first batch
            holds = f"Batches of {type(self).__name__} are dictionaries of {', '.join(self.parts)}"
            raise UserError(f"{holds}; got {type(found).__name__}.")
        texts = set(self.parts) - set(self.image_parts) - set(self.vector_parts)
        needed = [*self.parts, *self.also_reads]
        missing = [name for name in needed if name not in found]
        missing += [
            f"{name}/{part}" for name in self.parts if name in texts & found.keys()
            for part in TOKENS if not (isinstance(found[name], Mapping) and part in found[name])
        ]  # fmt: skip
        if missing:
            raise UserError(
                f"Batches of {type(self).__name__} lack {', '.join(missing)}: they are dictionaries of "
                f"{', '.join(needed)}, texts as a tokenizer gives them; got {_names(found)}."
            )
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas > 1 and not isinstance(x, tf.distribute.DistributedDataset):
            size = tf.nest.flatten(found[needed[0]])[0].shape[0] if isinstance(x, tf.data.Dataset) else None
            if size is None or size % replicas:
                raise UserError(
                    f"{replicas} replicas share a batch, so its size must be fixed and a multiple of {replicas}: got "
                    f"{size or 'no fixed one'}, expected a tf.data.Dataset with batch(B, drop_remainder=True)."
                )

    def get_config(self) -> dict:
        """Returns what `from_config` builds the same model of, without its weights."""
        tree = self.configuration.to_dict() if self.configuration is not None else None
        tree = json.loads(json.dumps(tree, default=list))  # Keras has names of its own for tuples
        return {"configuration": tree, "vocabulary_size": self.vocabulary_size}

    @classmethod
    def from_config(cls, config: dict, custom_objects=None) -> DualEncoder:
        """Returns a new model of what `get_config` gave; raises `UserError` where that is damaged."""
        from mural_tf.models import build_model

        return build_model(parse_config(config["configuration"], "The model's file"), config["vocabulary_size"])

    def get_compile_config(self) -> None:
        """Returns nothing: a saved model is compiled anew. A run that goes on has a workdir, see `run_pretrain.py`."""

    def save(self, filepath, overwrite: bool = True, **kwargs) -> None:
        """Writes Keras' format, `….keras`, which `keras.models.load_model` reads where `mural_tf.models` is imported.

        Raises `UserError` for other formats, which cannot hold a model with several inputs and losses of its own.
        """
        if not str(filepath).endswith(".keras") or kwargs.get("save_format") not in (None, "keras"):
            raise UserError(
                f"{filepath}: a {type(self).__name__} is saved as ….keras; its encoders as SavedModels, which need no "
                "code of this package, by run_export.py; its weights alone by save_weights."
            )
        if self.configuration is None:
            raise UserError("Only a model of mural_tf.models.build_model can be saved: it knows its configuration.")
        super().save(filepath, overwrite=overwrite)

    @property
    def steps_taken(self) -> tf.Variable:
        """int64 scalar: steps of training so far, those left out included."""
        return next(iter(self.optimizers.values())).iterations

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Means since the last log line; `fit` resets them."""
        return self.meters.metrics

    @tf.autograph.experimental.do_not_convert  # nothing in a step needs it, and converting takes seconds
    def train_step(self, batch: dict) -> dict[str, tf.Tensor]:
        """One step on one replica's part of the global batch; returns the means of the logs since the last reset."""
        if self._batch_spec is not None:
            batch = tf.nest.map_structure(lambda v, spec: tf.ensure_shape(v, spec.shape), batch, self._batch_spec)
        batch = self._with_ids(batch)
        logs, applied = self.step(batch, tf.identity(self.steps_taken))
        if self.progress is not None:
            self.progress.note(batch)
        return self._log(logs, batch, applied)

    @tf.autograph.experimental.do_not_convert
    def test_step(self, batch: dict) -> dict[str, tf.Tensor]:
        """The losses and logs of one replica's part of the global batch, as means since the last reset."""
        batch = self._with_ids(batch)
        embeddings = self.encode(batch, training=False)
        _, logs = global_losses(self, embeddings, batch, self.optimizers)
        logs = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, logs)
        logs.update(self.state_logs())
        rows = tf.cast(tf.shape(next(iter(embeddings.values())))[0], tf.float32)
        return self.meters.update(logs, rows)

    def _with_ids(self, batch) -> dict:
        """Returns a batch, which Keras may have put into a tuple, with ids of content where the losses' are missing."""
        batch = batch[0] if isinstance(batch, tuple) else batch
        made = {
            name: content_ids(batch[part])
            for name, part in CONTENT_IDS.items()
            if name not in batch and part in batch and part in self.parts
        }
        return {**batch, **made} if made else batch

    def _log(self, logs: dict, batch: dict, applied: tf.Tensor) -> dict[str, tf.Tensor]:
        weight = tf.cast(applied, tf.float32)  # steps that were left out would make every mean NaN
        results = self.meters.update({name: tf.where(applied, value, 0.0) for name, value in logs.items()}, weight)
        if "data_wait_seconds" in batch:
            results.update(self.meters.update({"data_wait_seconds": tf.reduce_sum(batch["data_wait_seconds"])}))
        return results


class LearnedTemperature(DualEncoder):
    """Base of methods with a temperature τ by which cosines of images and texts are divided, learned or fixed."""

    def __init__(self, image_encoder: keras.Model, text_encoder: keras.Model, config: ConfigDict, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        bounds, initial = tuple(config.loss.temperature_range), config.loss.temperature
        if len(bounds) != 2 or not all(0 < value < math.inf for value in (*bounds, initial)) or bounds[0] > bounds[1]:
            raise UserError(
                f"loss.temperature={initial} and loss.temperature_range={bounds}: expected numbers above 0, the "
                "range's the smaller and the larger one."
            )
        low, high = map(math.log, bounds)
        self.log_temperature = self.add_weight(  # log τ keeps τ positive; the constraint keeps it in its range
            name="log_temperature",
            shape=(),
            initializer=keras.initializers.Constant(math.log(initial)),
            constraint=lambda value: tf.clip_by_value(value, low, high),
            trainable=True,
        )

    @property
    def temperature(self) -> tf.Tensor:
        """The learned temperature, a scalar within `loss.temperature_range`."""
        return tf.exp(self.log_temperature)

    def state_logs(self):
        return {**super().state_logs(), "temperature": self.temperature}

    def weights_by_part(self):
        return {**super().weights_by_part(), "log_temperature": self.log_temperature}


def text_head(size: int, hidden: int, name: str) -> keras.layers.Layer:
    """Returns a layer [B, H] to [B, `size`] or, with `hidden` above 0, an MLP.

    [MURAL] A.1 gives neither the MLP's width nor its non-linearity; here it is one hidden layer with GELU.
    """
    last = keras.layers.Dense(size, name=name)
    if not hidden:
        return last
    first = keras.layers.Dense(hidden, activation="gelu", name=f"{name}_hidden")
    return keras.Sequential([first, last], name=name)


def content_ids(values: tf.Tensor | Mapping) -> tf.Tensor:
    """Returns int64 [B], a hash of each row of images, features or tokens: equal where their content is."""
    values = values[TOKENS[0]] if isinstance(values, Mapping) else values
    rows = tf.reshape(tf.convert_to_tensor(values), [tf.shape(values)[0], -1])
    numbers = tf.bitcast(rows, tf.int32) if rows.dtype == tf.float32 else rows
    factors = tf.random.stateless_uniform([tf.shape(rows)[1]], [0, 0], minval=None, maxval=None, dtype=tf.int64)
    return tf.reduce_sum(tf.cast(numbers, tf.int64) * factors, axis=1)  # modulo 2^64; padding, which is 0, adds nothing


def _names(batch: Mapping) -> str:
    return ", ".join(map(str, batch)) or "nothing"


def trainable_parameters(model: DualEncoder) -> int:
    """Returns how many numbers training may change: no averages of BatchNorm and no bookkeeping."""
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)


def image_embeddings(tower: keras.Model, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps images, uint8 or float in [0, 1] [B, S, S, 3], or features to L2-normalised float32 [B, D] by a tower."""
    return tf.math.l2_normalize(tf.cast(tower(unit_range(images), training=training), tf.float32), axis=-1)
