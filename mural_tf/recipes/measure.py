"""Image-text retrieval of a model in training: which weights are measured, on which split, under which name."""

from __future__ import annotations

import pathlib

from absl import logging
from ml_collections import ConfigDict

from mural_tf.config import ConfigurationError
from mural_tf.data import records
from mural_tf.embedder import Embedder
from mural_tf.evaluation.report import Evaluation
from mural_tf.evaluation.retrieval import measure_retrieval
from mural_tf.models import ContrastiveModel, build_model
from mural_tf.training.checkpoints import restore_for_inference


class MeasuredModel:
    """The model to evaluate and export: the trained one, or, of several replicas, a copy.

    The copy is on one device and has the weights of the latest checkpoint. So evaluation is one process' matter, and
    uses what a checkpoint holds: BatchNorm statistics averaged over the replicas.
    """

    def __init__(self, model: ContrastiveModel, tokenizer, config: ConfigDict, workdir: pathlib.Path, alone: bool):
        self._model = model if alone else None
        self._alone, self._config, self._workdir = alone, config, workdir
        self.tokenizer = tokenizer
        self._restored: int | None = None
        self._embedder: Embedder | None = None

    def at(self, step: int) -> ContrastiveModel:
        """Returns the model after `step` steps, which must be the latest checkpoint's where it is a copy."""
        if self._model is None:
            self._model = build_model(self._config, self.tokenizer.vocabulary_size)
        if not self._alone and self._restored != step:
            restore_for_inference(self._model, self._workdir)
            self._restored = step
        return self._model

    def embedder(self, step: int) -> Embedder:
        """Returns the embedder of `at(step)`; always the same one, so that it is traced once a run."""
        model = self.at(step)
        if self._embedder is None:
            self._embedder = Embedder.from_model(model, self.tokenizer, self._config, str(self._workdir))
        self._embedder.step = step
        return self._embedder


class SplitEvaluation:
    """Measures image-text retrieval on one split; what `training.callbacks.PeriodicEvaluation` calls."""

    def __init__(self, measured: MeasuredModel, config: ConfigDict, split: str):
        name = "emoji" if config.data.source == "emoji" else "retrieval"
        self.name = name if split == config.evaluation.split else f"{name}_{split}"  # one metrics.jsonl holds both
        self.model, self.split = measured.at, split
        self._measured, self._config = measured, config

    def __call__(self, step: int) -> Evaluation | None:
        """Returns the evaluation, or `None` where the data has no such split: training data often comes alone."""
        data = self._config.data.directory
        if self._config.image_tower.name == "none":
            logging.warning("No evaluation with images: the model has no image tower.")
            return None
        try:
            records.list_files(data, records.IMAGE_TEXT, self.split)
        except ConfigurationError as error:
            logging.warning("No evaluation: %s", error)
            return None
        embedder = self._measured.embedder(step)
        return measure_retrieval(
            embedder, data, self.split, batch_size=self._config.evaluation.batch_size, name=self.name
        )
