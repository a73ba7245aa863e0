"""Which devices train: one, all local devices, several workers, or a TPU; `workers.py` lets workers agree."""

from __future__ import annotations

import json
import os
import pathlib
import urllib.error
from collections.abc import Sequence

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.errors import UserError, first_line, install_extra
from mural_lite.files import as_path
from mural_lite.paths import RemotePath
from mural_tf.training.workers import compiles_steps, input_pipelines, is_chief


def build_strategy(tpu: str = "") -> tf.distribute.Strategy:
    """Returns the strategy for `--tpu`: "" = this machine, "local" = this TPU VM, else a TPU's name or address.

    With `tpu` empty, `TF_CONFIG` (several workers) selects MultiWorkerMirroredStrategy, several GPUs select
    MirroredStrategy, and one device needs none. Several workers are only possible before TensorFlow has run anything,
    so call this first. Raises `UserError` for a TPU that cannot be reached or a malformed `TF_CONFIG`.
    """
    if tpu:
        return _tpu_strategy(tpu)
    prepare_gpus()
    if os.environ.get("TF_CONFIG"):
        return _several_workers(os.environ["TF_CONFIG"])
    if len(tf.config.list_logical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def _tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    """Returns the strategy of a TPU after connecting to it; raises `UserError` where it cannot be reached."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, OSError, RuntimeError, tf.errors.OpError) as error:
        reason = first_line(error)
        if "ConfigureDistributedTPU" in str(error):
            reason = (
                f"TensorFlow {tf.__version__} here is built without TPU support. On a TPU VM install "
                "tensorflow-tpu in its place, see docs/devices.md"
            )
        elif isinstance(error, urllib.error.URLError):  # of the metadata server, which is asked about names
            reason = "a TPU is known by its name on Google Cloud only, and this machine is not there"
        raise UserError(f"The TPU {tpu!r} cannot be used: {reason}. Leave --tpu empty for this machine.") from None
    # By default TPUs round the factors of float32 products to bfloat16. The towers ask for bfloat16 by
    # their own dtype; only the similarity is float32 on purpose, divided by a temperature near 0.01.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return tf.distribute.TPUStrategy(resolver)


def as_compiled(config: ConfigDict, strategy: tf.distribute.Strategy) -> ConfigDict:
    """Returns the configuration to build a model of: with one group of lengths for words where XLA compiles steps.

    The groups of a tower of words are languages, whose sizes depend on the texts, and XLA needs known sizes. With one
    group it gives the same numbers, but computes on padding too. The change is printed in one line.
    """
    groups = config.text_tower.length_groups
    if groups <= 1 or not compiles_steps(config, strategy) or config.text_tower.name != "words":
        return config
    if is_chief(strategy):
        print(
            f"text_tower.length_groups={groups} counts as 1: with --tpu and with train.jit a step is compiled as a "
            "whole, which needs known lengths of texts, but the parts of a tower of words follow the data.",
            flush=True,
        )
    config = config.copy_and_resolve_references()
    config.text_tower.length_groups = 1
    return config


def prepare_gpus() -> None:
    """Lets the cards of this machine be shared, and keeps the similarity's products in float32."""
    cards = tf.config.list_physical_devices("GPU")
    for card in cards:
        try:  # memory as it is needed, instead of all of it, so that a server or another run fits next to this run
            tf.config.experimental.set_memory_growth(card, True)
        except RuntimeError:  # TensorFlow has begun to use it: as the caller has set it
            pass
    if cards:  # as on TPUs: the towers ask for bfloat16 by their own dtype
        tf.config.experimental.enable_tensor_float_32_execution(False)


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices of a strategy in one line, and the reason where TensorFlow cannot use a card."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return f"Devices: {strategy.num_replicas_in_sync} TPU cores."
    cards = tf.config.list_physical_devices("GPU")
    if cards:
        names = set()
        for card in cards:
            details = tf.config.experimental.get_device_details(card)
            names.add(details.get("device_name", card.name))
        return f"Devices: {len(cards)} GPU ({', '.join(sorted(names))})."
    line = f"Devices: CPU, {len(os.sched_getaffinity(0))} processors."
    unused_cards = nvidia_cards()
    are_cards_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1")  # by the user
    if unused_cards and not are_cards_hidden:
        line += (
            f" An NVIDIA card is in this machine ({', '.join(unused_cards)}), but TensorFlow {tf.__version__} cannot "
            f"use it: install the libraries with {install_extra('gpu')}; see docs/devices.md."
        )
    return line


def nvidia_cards(folder: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """Returns the product names of the NVIDIA cards that the kernel's driver lists, even if TensorFlow sees no card."""
    names = []
    for path in sorted(pathlib.Path(folder).glob("*/information")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Model:"):
                names.append(line.removeprefix("Model:").strip())
    return names


def _several_workers(cluster: str) -> tf.distribute.Strategy:
    """Returns the strategy for `cluster`, the JSON text of `TF_CONFIG`; raises `UserError` where it cannot be used."""
    try:
        settings = json.loads(cluster)
        role = settings["task"]["type"]
        index = int(settings["task"]["index"])  # often written as a string
        host_counts = {name: len(list(addresses)) for name, addresses in settings["cluster"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"The environment variable TF_CONFIG cannot be used ({type(error).__name__}: {error}): expected "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}.'
        ) from None
    other_roles = sorted({*host_counts, role} - {"chief", "worker"})
    if other_roles:
        raise UserError(
            f"TF_CONFIG names tasks of the kind {', '.join(other_roles)}: all processes train alike here, each as a "
            "worker or the chief; parameter servers and evaluators do not exist."
        )
    if not 0 <= index < host_counts.get(role, 0):
        raise UserError(f"TF_CONFIG's task {role} {index} is not in its cluster, which has {host_counts}.")
    return tf.distribute.MultiWorkerMirroredStrategy()


def check_places_of_pod(strategy: tf.distribute.Strategy, paths: Sequence[str | os.PathLike]) -> None:
    """Raises `UserError` for a folder of this machine where a TPU has several hosts: the others do not see it."""
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return
    hosts = input_pipelines(strategy)
    local_paths = [str(path) for path in paths if not isinstance(as_path(path), RemotePath)]
    if hosts > 1 and local_paths:
        raise UserError(
            f"{', '.join(local_paths)}: folders of this machine, but this TPU has {hosts} hosts, which read data and "
            "write checkpoints. Name places in a store: --workdir=gs://…, --config.data.directory=gs://…."
        )
