"""A small run as a worker of `TF_CONFIG`'s cluster trains it: python worker_run.py DATA WORKDIR WEIGHTS READ STEPS."""

import pathlib
import sys

import numpy as np
import toy_data

from mural_tf.backend import keras
from mural_tf.encoders.kernels import set_fusion
from mural_tf.models.build import build_model
from mural_tf.training.callbacks import StopSignals
from mural_tf.training.fit import compile_model, fit
from mural_tf.training.strategy import build_strategy
from mural_tf.training.workers import is_chief


def train(data, workdir, weights, read="all", steps=6):
    """Trains and writes the data position and all trained variables to `weights`, a .npz file."""
    strategy = build_strategy()  # before TensorFlow runs anything
    set_fusion("off")  # as in every test
    config = toy_data.toy_config(data)
    config.embedding_size = 16
    config.image_tower.update(dict(name="features", feature_size=16))  # BatchNorm of each replica's rows would differ
    config.loss.label_smoothing = 0.1
    config.data.update(dict(read=read, shuffle_buffer=25))
    config.train.update(dict(steps=int(steps), log_every=3, checkpoint_every=3))
    config.optimizer.update(dict(warmup_steps=1, decay=(0.9, 2)))  # the same for any number of steps
    tokenizer = toy_data.toy_tokenizer()
    if is_chief(strategy):
        pathlib.Path(workdir).mkdir(exist_ok=True)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = build_model(config, tokenizer.vocabulary_size)
        compile_model(model, config)
    with StopSignals() as signals:
        assert fit(model, tokenizer, config, pathlib.Path(workdir), strategy, signals)
    trained = {str(i): variable.numpy() for i, variable in enumerate(model.trainable_variables)}
    np.savez(weights, position=model.progress.places["image_text"].numpy(), **trained)


if __name__ == "__main__":
    train(*sys.argv[1:])
