"""A method as a Keras model: `compile`, `fit`, `evaluate`, `predict`, `model(batch)`, `save`; docs/keras.md shows them.

Here is Keras' contract; `DualEncoder` and the methods say how a model computes.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.models.step import Meters, StepGuard, TrainingStep, WeightAverage, global_losses
from mural_tf.optimizers import JOINT, build_optimizers, create_variables
from mural_tf.text.tokens import TOKENS

CONTENT_IDS = {  # ids that losses look up: the part whose content they identify
    "image_id": "image",
    "caption_id": "caption",
    "text_a_id": "text_a",
    "text_b_id": "text_b",
    "text_group_id": "text_a",
}


class KerasModel(keras.Model):
    """A model that trains by `TrainingStep` and follows Keras' contract.

    Attributes:
      configuration: the whole tree from which `build_model` built the model; `None` where it was built otherwise.
      builder: "module:function", which builds it again from the configuration as a dictionary and a vocabulary's size.
      step: the step of a compiled model; `None` before.
      optimizers: a compiled model's {"joint": optimiser}, or {task: optimiser}.
      progress: the position in the data, which `note`s every trained batch, see training/data_progress.py.
    """

    configuration: ConfigDict | None = None
    builder: str = ""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._batch_spec = None
        self.compiled_lengths: tuple[int, ...] = ()
        self.step: TrainingStep | None = None
        self.progress = None
        self.optimizers: dict[str, keras.optimizers.Optimizer] = {}
        self.meters = Meters(())

    def compile(
        self,
        optimizer: str | keras.optimizers.Optimizer | None = None,
        *,
        optimizers: Mapping[str, keras.optimizers.Optimizer] | None = None,
        clip_norm: float | None = None,
        micro_batches: int | None = None,
        max_skipped_steps: int = 10,
        seed: int | None = None,
        average_decay: float | None = None,
        compiled_lengths: tuple[int, ...] = (),
        **kwargs,
    ):
        """Makes the training step, its optimisers and logs, and all their variables; call it in the strategy's scope.

        Args:
          optimizer: a name or an instance of Keras', old or new: one for all tasks and towers, as it is. In a step that
            is left out because its loss or gradient is not finite, it gets gradients of 0. None: the configuration's.
          optimizers: in its place {"joint": optimiser}, or {task: optimiser}; see `optimizers.build_optimizers`.
          clip_norm: global gradient norm to clip at, 0: off; None: the configuration's.
          micro_batches: 1, or the number of equal chunks in which a batch is computed; None: the configuration's.
          max_skipped_steps: steps in a row that may be left out; more mean lost weights or bad data, see `StepGuard`.
          seed: the seed of all draws; None: the configuration's.
          average_decay: the decay of a `WeightAverage`, 0: no average; None: the configuration's.
          compiled_lengths: where XLA compiles the step, the lengths of texts that it compiles, see `encode_by_length`.
          kwargs: arguments of Keras' `compile`, such as `run_eagerly` or `steps_per_execution`.

        Raises:
          UserError: a `loss` or `metrics`, which are the method's own, an unknown optimiser, a setting out of its
            range, or towers whose weights are bfloat16, too coarse for a step.
        """
        config = self.configuration or base_config()
        self._check_compiled(config, kwargs)
        if not self.built:  # its towers were given, without `build_model`
            self.build_variables()
        if optimizers is None:
            optimizers = self._chosen_optimizers(optimizer, config)
        self.compiled_lengths = compiled_lengths
        first_optimizer = next(iter(optimizers.values()))
        super().compile(optimizer=first_optimizer, **kwargs)
        self.optimizers = dict(optimizers)
        decay = _first_given(average_decay, config.train.average_decay)
        average = None
        if decay:
            average = WeightAverage(self.trainable_variables, decay)
        self.step = TrainingStep(
            self,
            dict(optimizers),
            StepGuard(max_skipped_steps),
            clip_norm=_first_given(clip_norm, config.optimizer.clip_norm),
            micro_batches=_first_given(micro_batches, config.train.micro_batches),
            seed=_first_given(seed, config.seed),
            average=average,
        )
        names = [*self.log_names, *self.step.log_names]
        self.meters = Meters((*names, "data_wait_seconds"))
        self.step.guard.build(names)
        for new_optimizer in self.optimizers.values():
            create_variables(new_optimizer, self.trainable_variables)  # a checkpoint may be restored before a step

    def _check_compiled(self, config: ConfigDict, keras_arguments: Mapping) -> None:
        """Raises `UserError` for a `compile` with losses that are not the method's, or towers with bfloat16 weights."""
        for name in ("loss", "metrics", "weighted_metrics", "loss_weights"):
            if keras_arguments.get(name) is not None:
                raise UserError(
                    f"compile({name}=…): the losses of {type(self).__name__} and its logs are its own; its weights "
                    "are fields of the configuration, such as loss.text_text_weight."
                )
        if "bfloat16" in (config.image_tower.precision, config.text_tower.precision):
            raise UserError("precision='bfloat16' rounds the weights, for exports: train with 'mixed_bfloat16'.")

    def _chosen_optimizers(self, optimizer, config: ConfigDict) -> dict[str, keras.optimizers.Optimizer]:
        """Returns {"joint": optimiser} of a name or an instance, for `None` the configured; else raises `UserError`."""
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
        """Returns {name: L2-normalised float32 [B, D]} of the parts in `inputs`; raises `UserError` without a part."""
        used = {name: embedding for name, embedding in self.used.items() if embedding.part in inputs}
        if not used:
            holds = ", ".join(self.parts)
            raise UserError(f"A batch of {type(self).__name__} holds {holds}; got {_entry_names(inputs)}.")
        return self._encode(inputs, training, used)

    def fit(self, x, **kwargs):
        """Keras' `fit`, on batches as `check_batch` has them: a `tf.data.Dataset`, or a dictionary of arrays.

        Raises `UserError` as `check_batch`, and if more steps in a row than `max_skipped_steps` had no finite loss.
        """
        self.check_batch(x)
        spec = getattr(x, "element_spec", None)
        self._batch_spec = None
        # Keras forgets the sizes that x announces, and `train_step` restores them: not if Keras divides x by replicas.
        is_divided = isinstance(x, tf.data.Dataset) and self.distribute_strategy.num_replicas_in_sync > 1
        if isinstance(spec, Mapping) and not is_divided:
            self._batch_spec = tf.nest.map_structure(_spec_of_one_replica, spec)
        history = super().fit(x, **kwargs)
        self.step.guard.raise_if_stuck()
        return history

    def evaluate(self, x, **kwargs):
        """Keras' `evaluate`: the losses and in-batch recalls, weighted by the sizes of the batches."""
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
        """Raises `UserError` for batches that are not dictionaries, lack entries, or cannot be shared by the replicas.

        `x` is an argument of `fit` and the like: a dataset or one batch; generators are not looked into.
        Batches are dictionaries of the entries `parts`: images, uint8 or float in [0, 1] [B, S, S, 3], or features;
        tokens as a tokenizer gives them, {"input_word_ids", "input_mask", "input_type_ids"}, int32 [B, T]. Integer ids
        [B], such as "image_id", may be added: rows of equal ids are not negatives; without ids, rows of equal content
        are not. Several replicas need batches of one size, which they share evenly.
        """
        batch = getattr(x, "element_spec", x)  # of a dataset the specs of its batches
        if isinstance(batch, tuple) and batch:
            batch = batch[0]
        if not isinstance(batch, Mapping):
            is_array = hasattr(x, "shape") or isinstance(x, Sequence)
            if batch is x and not is_array:
                return  # a generator or the like: unknown before its first batch
            raise UserError(
                f"Batches of {type(self).__name__} are dictionaries of {', '.join(self.parts)}; got "
                f"{type(batch).__name__}."
            )
        self._check_entries(batch)
        if isinstance(x, tf.distribute.DistributedDataset):
            return  # it is divided among the replicas already
        size = None
        if isinstance(x, tf.data.Dataset):
            first_tensor = tf.nest.flatten(batch[self.parts[0]])[0]
            size = first_tensor.shape[0]
        _check_shared(size, self.distribute_strategy.num_replicas_in_sync)

    def _check_entries(self, batch: Mapping) -> None:
        """Raises `UserError` if a batch, or its specs, lacks entries that the losses take."""
        needed = [*self.parts, *self.also_reads]
        missing = [name for name in needed if name not in batch]
        for name in self.token_parts:
            if name in batch:
                missing += _missing_tokens(name, batch[name])
        if missing:
            raise UserError(
                f"Batches of {type(self).__name__} lack {', '.join(missing)}: they are dictionaries of "
                f"{', '.join(needed)}, texts as a tokenizer gives them; got {_entry_names(batch)}."
            )

    def get_config(self) -> dict:
        """Returns the dictionary from which `from_config` builds the same model, without its weights."""
        tree = None
        if self.configuration is not None:
            tree = json.loads(json.dumps(self.configuration.to_dict(), default=list))  # Keras renames tuples
        return {"configuration": tree, "vocabulary_size": self.vocabulary_size, "builder": self.builder}

    @classmethod
    def from_config(cls, config: dict, custom_objects=None) -> KerasModel:
        """Returns a new model from a dictionary of `get_config`; raises `UserError` where it is damaged."""
        module, _, name = config["builder"].partition(":")
        build = getattr(importlib.import_module(module), name)
        return build(config["configuration"], config["vocabulary_size"])

    def get_compile_config(self) -> None:
        """Returns `None`: a loaded model is to be compiled anew. Runs go on from workdirs, see `run_pretrain.py`."""

    def save(self, filepath, overwrite: bool = True, **kwargs) -> None:
        """Writes Keras' format, `….keras`, which `keras.models.load_model` reads where `mural_tf.models` is imported.

        Raises `UserError` for other formats, which cannot hold a model with several inputs and losses of its own, and
        for a model without a configuration.
        """
        if not str(filepath).endswith(".keras") or kwargs.get("save_format") not in (None, "keras"):
            raise UserError(
                f"{filepath}: a {type(self).__name__} is saved as ….keras; its encoders as SavedModels, which need no "
                "code of this package, by run_export.py; its weights by save_weights."
            )
        if self.configuration is None:
            raise UserError("Only a model that build_model made can be saved: it knows its configuration.")
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
        """Trains on one replica's part of the global batch; returns {name: mean since the last reset} of the logs."""
        if self._batch_spec is not None:
            batch = tf.nest.map_structure(lambda x, spec: tf.ensure_shape(x, spec.shape), batch, self._batch_spec)
        batch = self._with_ids(batch)
        logs, applied = self.step(batch, tf.identity(self.steps_taken))
        if self.progress is not None:
            self.progress.note(batch)
        return self._log(logs, batch, applied)

    @tf.autograph.experimental.do_not_convert
    def test_step(self, batch: dict) -> dict[str, tf.Tensor]:
        """Returns {name: mean since the last reset} of the losses and logs; changes no weights."""
        batch = self._with_ids(batch)
        embeddings = self.encode(batch, training=False)
        _, logs = global_losses(self, embeddings, batch, self.optimizers)
        logs = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, logs)
        logs.update(self.state_logs())
        first_embedding = next(iter(embeddings.values()))
        rows = tf.cast(tf.shape(first_embedding)[0], tf.float32)
        return self.meters.update(logs, rows)

    def _with_ids(self, batch) -> dict:
        """Returns the dictionary of a batch, with ids by content where it lacks ids of `CONTENT_IDS`."""
        if isinstance(batch, tuple):
            batch = batch[0]  # Keras may have put the dictionary into a tuple
        ids = {}
        for name, part in CONTENT_IDS.items():
            if name not in batch and part in batch and part in self.parts:
                ids[name] = content_ids(batch[part])
        return {**batch, **ids}

    def _log(self, logs: dict, batch: dict, applied: tf.Tensor) -> dict[str, tf.Tensor]:
        """Adds a step's logs to the means, and returns {name: mean since the last reset}."""
        weight = tf.cast(applied, tf.float32)  # 0 for steps that were left out: they would make every mean NaN
        finite = {name: tf.where(applied, value, 0.0) for name, value in logs.items()}
        results = self.meters.update(finite, weight)
        if "data_wait_seconds" in batch:
            results.update(self.meters.update({"data_wait_seconds": tf.reduce_sum(batch["data_wait_seconds"])}))
        return results


def content_ids(values: tf.Tensor | Mapping) -> tf.Tensor:
    """Returns int64 [B], a hash of each row of images, features or tokens: equal where their content is."""
    if isinstance(values, Mapping):
        values = values[TOKENS[0]]  # the ids of the pieces
    numbers = tf.reshape(tf.convert_to_tensor(values), [tf.shape(values)[0], -1])
    if numbers.dtype.is_floating:  # cast to integers, nearly all would be 0
        numbers = tf.bitcast(tf.cast(numbers, tf.float32), tf.int32)
    width = tf.shape(numbers)[1]
    # A fixed seed: all replicas must hash alike. Without bounds the factors are any int64.
    factors = tf.random.stateless_uniform([width], [0, 0], minval=None, maxval=None, dtype=tf.int64)
    return tf.reduce_sum(tf.cast(numbers, tf.int64) * factors, axis=1)  # modulo 2^64; padding, which is 0, adds nothing


def _spec_of_one_replica(spec):
    """Returns the first replica's spec, for the spec of a distributed tensor; a plain tensor's spec as it is."""
    return tf.nest.flatten(spec, expand_composites=True)[0]


def _first_given(value, default):
    """Returns `value`, or `default` if the value is `None`."""
    if value is None:
        return default
    return value


def _missing_tokens(name: str, tokens) -> list[str]:
    """Returns the names that the tokens of a batch's entry `name` lack: ["caption/input_mask"], say."""
    present_names = tokens if isinstance(tokens, Mapping) else ()
    return [f"{name}/{entry}" for entry in TOKENS if entry not in present_names]


def _check_shared(size: int | None, replicas: int) -> None:
    """Raises `UserError` if the replicas cannot share batches of `size` evenly; `None`: of no fixed size."""
    if replicas == 1:
        return
    if size is None or size % replicas:
        raise UserError(
            f"{replicas} replicas share a batch, so its size must be fixed and a multiple of {replicas}: got "
            f"{size or 'no fixed one'}, expected a tf.data.Dataset with batch(B, drop_remainder=True)."
        )


def _entry_names(batch: Mapping) -> str:
    """Returns the names of a batch's entries for a message: "image, caption", or "nothing"."""
    return ", ".join(map(str, batch)) or "nothing"
