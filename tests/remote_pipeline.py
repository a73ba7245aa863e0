"""Batches of an input pipeline that lives in another process equal those made here: python remote_pipeline.py DATA."""

import subprocess
import sys

import numpy as np
import tensorflow as tf
import toy_data

from mural_tf.data.streams.pipeline import training_batches

# The process needs TensorFlow and tensorflow_text's operations, and nothing of this project.
SERVER = """
import tensorflow as tf, tensorflow_text
server = tf.distribute.Server({"worker": ["127.0.0.1:0"]}, job_name="worker", task_index=0)
print(server.target, flush=True)
server.join()
"""


def compare(data):
    """Connects before anything is made, as a training program does."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        tf.config.experimental_connect_to_host(server.stdout.readline().strip().removeprefix("grpc://"))
        config, tokenizer = toy_data.toy_config(data), toy_data.toy_tokenizer()
        config.data.language_temperature = 3.0
        here = next(iter(training_batches(config, tokenizer)))
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            there = next(iter(training_batches(config, tokenizer)))
        assert here.keys() == there.keys()
        for name in here.keys() - {"data_wait_seconds"}:
            tf.nest.map_structure(np.testing.assert_array_equal, there[name], here[name])
    finally:
        server.kill()
    print("equal", flush=True)


if __name__ == "__main__":
    compare(sys.argv[1])
