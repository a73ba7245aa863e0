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
    """Calling it returns the model to evaluate and export: the trained one, or, of several replicas, a copy.

    The copy is on one device and has the weights of the latest checkpoint. So evaluation is one process' matter, and
    uses what a checkpoint holds: BatchNorm statistics averaged over the replicas.
    """

    def __init__(self, model: ContrastiveModel, tokenizer, config: ConfigDict, workdir: pathlib.Path, alone: bool):
        self._model = model if alone else None
        self._alone, self._workdir = alone, workdir
        self._build = lambda: build_model(config, tokenizer.vocabulary_size)

    def __call__(self) -> ContrastiveModel:
        if self._model is None:
            self._model = self._build()
        if not self._alone:
            restore_for_inference(self._model, self._workdir)
        return self._model


class SplitEvaluation:
    """Measures image-text retrieval on one split; what `training.callbacks.PeriodicEvaluation` calls."""

    def __init__(self, model: MeasuredModel, tokenizer, config: ConfigDict, workdir: pathlib.Path, split: str):
        name = "emoji" if config.data.source == "emoji" else "retrieval"
        self.name = name if split == config.evaluation.split else f"{name}_{split}"  # one metrics.jsonl holds both
        self.model, self.split = model, split
        self._tokenizer, self._config, self._workdir = tokenizer, config, workdir
        self._embedder: Embedder | None = None

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
        model = self.model()
        if self._embedder is None:
            self._embedder = Embedder.from_model(model, self._tokenizer, self._config, str(self._workdir), step)
        self._embedder.step = step
        return measure_retrieval(
            self._embedder, data, self.split, batch_size=self._config.evaluation.batch_size, name=self.name
        )
