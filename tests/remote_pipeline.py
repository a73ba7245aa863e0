"""What lives in another process, as on a TPU's hosts: python remote_pipeline.py DATA FOLDER.

Batches of an input pipeline there equal those made here; a variable there is saved and restored by files of this host.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import tensorflow as tf
import toy_data

from mural_tf.data.streams.pipeline import training_batches
from mural_tf.training.checkpoints import Checkpoints

# The process needs TensorFlow and tensorflow_text's operations, and nothing of this project.
SERVER = """
import tensorflow as tf, tensorflow_text
server = tf.distribute.Server({"worker": ["127.0.0.1:0"]}, job_name="worker", task_index=0)
print(server.target, flush=True)
server.join()
"""


THERE = "/job:worker/replica:0/task:0/device:CPU:0"


def compare(data, folder):
    """Connects before anything is made, as a training program does."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        tf.config.experimental_connect_to_host(server.stdout.readline().strip().removeprefix("grpc://"))
        config, tokenizer = toy_data.toy_config(data), toy_data.toy_tokenizer()
        config.data.language_temperature = 3.0
        here = next(iter(training_batches(config, tokenizer)))
        with tf.device(THERE):
            there = next(iter(training_batches(config, tokenizer)))
        assert here.keys() == there.keys()
        for name in here.keys() - {"data_wait_seconds"}:
            tf.nest.map_structure(np.testing.assert_array_equal, there[name], here[name])
        save_and_restore(folder)
    finally:
        server.kill()
    print("equal", flush=True)


def save_and_restore(folder):
    """The path is one of this process's working directory, which the other one's is not."""
    os.chdir(folder)
    with tf.device(THERE):
        variable = tf.Variable([1.0, 2.0])
    checkpoints = Checkpoints(tf.train.Checkpoint(variable=variable), pathlib.Path("checkpoints"), keep=1)
    checkpoints.save(5)
    checkpoints.wait()
    assert pathlib.Path("checkpoints/ckpt-5.index").exists()
    variable.assign([0.0, 0.0])
    assert checkpoints.restore() == "checkpoints/ckpt-5"
    assert variable.numpy().tolist() == [1.0, 2.0] and "worker" in variable.device


if __name__ == "__main__":
    compare(*sys.argv[1:])
