"""Saving and restoring a run: weights, optimiser slots, step, temperature. Its place in the data: `data_progress.py`.

A folder of checkpoints holds `ckpt-<step>.index` and `.data-…` files and `checkpoint`, the list of them in TensorFlow's
format. Files appear under their names when they are complete, and the list names only those, so a run may be killed
at any moment. If a file is damaged later, the one before is restored.

A file is written while training goes on. TensorFlow's own asynchronous checkpoints (2.15) name a checkpoint in the list
before it is written, and keep a second copy of all variables permanently. Here the values are read as tensors, which
never change: on the CPU such a tensor shares its variable's memory, and the first update of the variable afterwards
takes new memory. So reading costs almost nothing, and a copy exists only while it is being written. Reading may
involve all workers (some variables are averaged when read); only one worker writes.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import threading
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from mural_lite.errors import UserError, first_line
from mural_lite.files import json_field, publish, read_json, write_whole
from mural_tf.models.dual_encoder import DualEncoder

PARTIAL = ".saving"  # the folder of files that are not complete yet


class SnapshotReader:
    """Reads the values that `checkpoint.write` would write, in its format, keys and object graph included.

    Tracing `checkpoint.write` gives the operation that saves, and with it every key and where its value comes from;
    running the graph up to there reads the values. All variables must exist. Create it in the strategy's scope.
    """

    def __init__(self, checkpoint: tf.train.Checkpoint):
        traced = tf.compat.v1.wrap_function(lambda: checkpoint.write(tf.constant("never written")), [])
        self._names = []
        values = []
        for operation in traced.graph.get_operations():
            if operation.type == "SaveV2":  # inputs: prefix, names, slices, then the values
                self._names += list(tf.get_static_value(operation.inputs[1]))
                values += operation.inputs[3:]
        # Received again at every call: the keys of collectives, where reading takes all workers.
        self._deferred = list(traced.graph.deferred_external_captures)
        self._read = traced.prune(tf.nest.flatten(traced.graph.deferred_internal_captures), values)

    def read(self) -> tuple[list[bytes], list[tf.Tensor]]:
        """Returns the keys, and the values that they have now."""
        received = [value() for value in self._deferred]
        return self._names, self._read(*tf.nest.flatten(received))


def write_snapshot(snapshot: tuple[list[bytes], list[tf.Tensor]], prefix: pathlib.Path) -> None:
    """Writes `prefix`.data-00000-of-00001 and `prefix`.index; where the index exists, the checkpoint is complete.

    Args:
      snapshot: the keys and values of `SnapshotReader.read`.
      prefix: the checkpoint's path without suffix.

    Raises TensorFlow's or Python's error if the disk is full; files that were there before are then as they were.
    """
    names, values = snapshot
    partial = prefix.parent / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with tf.device("CPU:0"):
            path = str(partial / prefix.name)
            slices = [""] * len(names)
            tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=slices, tensors=values)
        for suffix in (".data-00000-of-00001", ".index"):  # the index last: it says that the checkpoint is complete
            publish(partial / f"{prefix.name}{suffix}", f"{prefix}{suffix}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


# {name that users give to a checkpoint: its folder in the workdir}
FOLDERS = {"result": "checkpoints/result", "latest": "checkpoints", "best": "checkpoints/best"}


class Checkpoints:
    """The last `keep` checkpoints in a folder, written on a thread; with `writes` unfinished files are removed.

    Args:
      checkpoint: the state that is saved; all its variables must exist.
      folder: the folder; it is made if it is missing.
      keep: how many checkpoints stay.
      writes: whether this process writes files; all workers must call `save`, one of them writes.
      restored: the parts that `restore` restores; `None`: all parts that are saved.
    """

    def __init__(
        self,
        checkpoint: tf.train.Checkpoint,
        folder: pathlib.Path,
        keep: int,
        writes: bool = True,
        restored: tf.train.Checkpoint | None = None,
    ):
        self._checkpoint = checkpoint
        self._folder = folder
        self._keep = keep
        self._writes = writes
        self._restored = restored or checkpoint
        self._kept = list_checkpoints(folder)
        self._reader = None  # made by `prepare`
        self._thread = None  # of the last save
        self._error = None  # which the last save ended with
        if writes:
            shutil.rmtree(folder / PARTIAL, ignore_errors=True)  # of a run that was killed
            for unfinished in folder.glob("*_temp"):  # as TensorFlow names them
                shutil.rmtree(unfinished, ignore_errors=True)

    def restore(self) -> str | None:
        """Restores the newest usable checkpoint and returns its path without suffix, `None` if there is no checkpoint.

        Raises `UserError` if all are damaged, or the checkpoint does not fit the model.
        """
        if not self._kept:
            return None
        restored = _restore_newest(lambda path: self._restored, self._kept, self._folder)
        self._kept = self._kept[: self._kept.index(restored) + 1]  # later checkpoints are damaged
        return restored

    def prepare(self) -> None:
        """Traces the functions of `save`, which takes seconds for a large model, so that the first `save` need not."""
        if self._reader is None:
            self._reader = SnapshotReader(self._checkpoint)
            self._reader.read()

    def save(self, step: int) -> None:
        """Waits for the save before, reads all values and starts to write them; later changes are not in the file.

        Raises `UserError` if the save before this one failed.
        """
        self.wait()
        self.prepare()
        snapshot = self._reader.read()
        if self._writes:
            # Not a daemon: the interpreter's end waits for it.
            self._thread = threading.Thread(target=self._write, args=(step, snapshot), name=f"checkpoint {step}")
            self._thread.start()

    def wait(self) -> None:
        """Returns when everything is written.

        Raises `UserError` if the disk is full or cannot be written; earlier checkpoints are intact.
        """
        if self._thread is not None:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises the error that a save ended with, as `wait` does, but without waiting; each error once."""
        error = self._error
        if error is None:
            return
        self._error = None
        if not isinstance(error, (tf.errors.OpError, OSError)):
            raise error
        raise UserError(
            f"Saving a checkpoint in {self._folder} failed: {_reason(error)}. Earlier checkpoints are intact; free "
            "some space and run the same command again."
        )

    def _write(self, step: int, snapshot: tuple[list[bytes], list[tf.Tensor]]) -> None:
        """Writes one checkpoint and the list, then removes the files of checkpoints that are not kept any longer."""
        try:
            prefix = self._folder / f"ckpt-{step}"
            write_snapshot(snapshot, prefix)
            paths = [path for path in self._kept if path != str(prefix)]
            paths.append(str(prefix))
            self._kept = paths[-self._keep :]
            self._write_list()
            kept_names = {pathlib.Path(path).name for path in self._kept}
            for path in self._folder.glob("ckpt-*"):
                if path.name.split(".")[0] not in kept_names:
                    path.unlink()
        except Exception as error:  # noqa: BLE001 - raised again where training asks, in `check`
            self._error = error

    def _write_list(self) -> None:
        """Writes `checkpoint`, the list of the kept checkpoints in TensorFlow's format."""
        names = [json.dumps(pathlib.Path(path).name) for path in self._kept]  # relative: a workdir may be moved
        lines = [f"model_checkpoint_path: {names[-1]}\n"]
        lines += [f"all_model_checkpoint_paths: {name}\n" for name in names]
        write_whole(self._folder / "checkpoint", "".join(lines))


def _reason(error: tf.errors.OpError | OSError) -> str:
    """Returns the message of an error without its type and numbers, such as "No space left on device"."""
    message = error.message if isinstance(error, tf.errors.OpError) else error.strerror
    return message or str(error)


def training_checkpoints(
    model: DualEncoder,
    workdir: pathlib.Path,
    keep: int,
    writes: bool = True,
    data_progress: tf.train.Checkpoint | None = None,
) -> Checkpoints:
    """Returns the checkpoints of a compiled model: everything that the rest of its training follows from.

    Args:
      model: a compiled model.
      workdir: the run's folder.
      keep, writes: as in `Checkpoints`.
      data_progress: is saved with the model, and restored by `DataProgress.restore`.
    """
    optimizers = {f"optimizer_{name}": optimizer for name, optimizer in model.optimizers.items()}
    restored = dict(model=_weights(model), guard=model.step.guard, **optimizers, **model.training_parts())
    if model.step.average is not None:
        restored["average"] = model.step.average
    saved = dict(restored)
    if data_progress is not None:
        saved["data_progress"] = data_progress
    folder = workdir / FOLDERS["latest"]
    return Checkpoints(tf.train.Checkpoint(**saved), folder, keep, writes, tf.train.Checkpoint(**restored))


class BestCheckpoint:
    """The weights of the best evaluation so far, in `checkpoints/best` next to `best.json`: {"step", "value"}."""

    def __init__(self, model: DualEncoder, workdir: pathlib.Path):
        folder = workdir / FOLDERS["best"]
        self._checkpoints = Checkpoints(tf.train.Checkpoint(model=_weights(model)), folder, keep=1)
        self._record = folder / "best.json"
        self.value = float("-inf")
        if self._record.exists():
            self.value = json_field(read_json(self._record), "value", float, self._record)

    def offer(self, step: int, value: float) -> None:
        """Writes the present weights and best.json if `value` is above all values before; returns when all is written.

        Args:
          step: the step after which the model has these weights.
          value: the score of the evaluation; larger is better.
        """
        if value > self.value:
            self._checkpoints.save(step)
            self._checkpoints.wait()
            write_whole(self._record, json.dumps({"step": step, "value": value}) + "\n")
            self.value = value


def list_checkpoints(folder: pathlib.Path) -> list[str]:
    """Returns the paths without suffix of the checkpoints that a folder lists or holds, the earliest step first.

    Warns of a damaged list.
    """
    try:
        state = tf.train.get_checkpoint_state(str(folder))
    except ValueError:  # other damage of the list is only a warning in TensorFlow: the files speak for themselves
        logging.warning("The list %s is damaged.", folder / "checkpoint")
        state = None
    # A run that was killed just after the last file was complete had no time to list it.
    paths = {str(path.with_suffix("")) for path in folder.glob("ckpt-*.index")}
    if state:
        paths.update(state.all_model_checkpoint_paths)
        paths.add(state.model_checkpoint_path)
    with_step = [path for path in paths if re.search(r"-\d+$", path)]  # a damaged list may name others
    return sorted(with_step, key=step_of)


def has_checkpoint(workdir: pathlib.Path) -> bool:
    """Whether training has saved anything in a workdir."""
    return bool(list_checkpoints(workdir / FOLDERS["latest"]))


def existing_name(workdir: str | pathlib.Path, which: str) -> str:
    """Returns `which`, a name in `FOLDERS`; "latest" in place of a "result" that is missing.

    A run whose last weights are its result keeps no other.
    """
    if which == "result" and not list_checkpoints(pathlib.Path(workdir) / FOLDERS[which]):
        return "latest"
    return which


def restore_for_inference(
    model: DualEncoder, workdir: str | pathlib.Path, which: str = "result", partly: bool = False
) -> str:
    """Restores a model's weights from a workdir and returns the checkpoint's path without suffix.

    Args:
      model: the model whose weights are set.
      workdir: a run's folder.
      which: "latest": the weights after the last step; "best": the weights that were best on dev; "result": the run's
        result where it differs from the last weights (mixed with the source's, or averaged over steps), else "latest".
      partly: leave parts of the model that the checkpoint does not hold as they are: it is another method's.

    Raises:
      UserError: the name is unknown, or the checkpoint is missing, damaged, or of another architecture or vocabulary.
    """
    if which not in FOLDERS:
        raise UserError(f"Unknown checkpoint {which!r}; known: {', '.join(FOLDERS)}.")
    folder = pathlib.Path(workdir) / FOLDERS[existing_name(workdir, which)]
    paths = list_checkpoints(folder)
    if not paths and which == "best":
        raise UserError(
            f"{workdir} has no best checkpoint yet: expected one in {folder}. It is kept when training evaluates, with "
            "train.evaluate_every above 0."
        )
    if not paths:
        raise UserError(f"{workdir} has no checkpoint yet: expected one in {folder}.")

    def weights_to_restore(path):
        weights = _present_weights(model, path) if partly else _weights(model)
        return tf.train.Checkpoint(model=weights)

    return _restore_newest(weights_to_restore, paths, folder)


def save_result(model: DualEncoder, workdir: pathlib.Path, step: int) -> None:
    """Saves a model's weights as the run's result; returns when they are written."""
    save_weights(model, workdir / FOLDERS["result"], step)


def save_weights(model: DualEncoder, folder: pathlib.Path, step: int) -> None:
    """Writes a checkpoint of only the weights, the only one in its folder; returns when it is written."""
    checkpoints = Checkpoints(tf.train.Checkpoint(model=_weights(model)), folder, keep=1)
    checkpoints.save(step)
    checkpoints.wait()


def step_of(path: str) -> int:
    """Returns the step that a checkpoint's path ends in."""
    return int(path.rsplit("-", 1)[1])


def _weights(model: DualEncoder) -> tf.train.Checkpoint:
    """Returns the parts of the model that have weights, to save or to restore.

    Not the Keras model itself, which would hand a checkpoint's optimiser state to the optimiser that it is compiled
    with later.
    """
    return tf.train.Checkpoint(**model.towers.weights_by_part())


def _present_weights(model: DualEncoder, path: str) -> tf.train.Checkpoint:
    """Returns the parts of the model that have any value in the checkpoint at `path`."""
    saved_parts = set()
    for key, _ in tf.train.list_variables(path):  # such as "model/image_encoder/…"
        if key.startswith("model/"):
            saved_parts.add(key.split("/")[1])
    parts = {name: part for name, part in model.weights_by_part().items() if name in saved_parts}
    return tf.train.Checkpoint(**parts)


def _on_this_host() -> tf.train.CheckpointOptions:
    """Returns options by which this host reads the file, wherever a variable lives: a TPU's hosts do not see it."""
    with tf.device("CPU:0"):
        return tf.train.CheckpointOptions(experimental_io_device=tf.constant(0).device)


def _restore_newest(checkpoint_of: Callable[[str], tf.train.Checkpoint], paths: list[str], folder: pathlib.Path) -> str:
    """Restores the newest checkpoint that is not damaged, warns of the damaged before it, and returns its path.

    Args:
      checkpoint_of: returns the objects that the checkpoint at a path restores.
      paths: paths without suffix, the newest last.
      folder: the checkpoints' folder, for messages.

    Raises:
      UserError: all are damaged, or the newest undamaged checkpoint does not fit the objects.
    """
    for number in reversed(range(len(paths))):
        path = paths[number]
        try:
            # Not `restore`, which also wants TensorFlow's own count of saves.
            status = checkpoint_of(path).read(path, _on_this_host())
            status.assert_existing_objects_matched().expect_partial()
            return path
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            reason = first_line(error)[:300]  # characters: it may list all variables
            raise UserError(
                f"The checkpoint {path} does not fit the model of this configuration and vocabulary: {reason}"
            ) from None
        except (IndexError, tf.errors.OpError) as error:  # TensorFlow has many names for a damaged file
            if number == 0:
                raise UserError(
                    f"No checkpoint in {folder} is usable: all {len(paths)} are missing or damaged; the oldest, "
                    f"{path}: {error}"
                ) from None
            earlier_path = paths[number - 1]
            logging.warning("The checkpoint %s is missing or damaged; using the one before, %s.", path, earlier_path)
