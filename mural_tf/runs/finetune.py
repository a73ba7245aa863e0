"""Fine-tuning: a trained model's towers, heads, temperature and vocabulary on new data with new settings.

[MURAL] §3.1: single-task (image-text only) is the default; multi-task on co-captions is the ablation
(`data.text_pairs="co_captions"` and a text-text weight). The source is a workdir or an export, also by its name on
the Hugging Face Hub (`hf://ORG/NAME`), or, for the text tower alone, a TF-Hub handle or folder. An export's `hub/` is
for other people's programs; the export around it holds more.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Collection

from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.config_file import load_config
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path
from mural_lite.hugging_face import suggestion
from mural_lite.remote_folders import display_name, lasting_name, local_copy, local_model
from mural_lite.trust import check_class, check_handles, check_stored
from mural_lite.versions import newest_description
from mural_tf.export.restore import restore_from_export
from mural_tf.export.saved_model import variables_of
from mural_tf.models import method_class, mount
from mural_tf.models.build import build_model
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.models.embedder import embedder_of
from mural_tf.runs.import_pretrained import workdir_of
from mural_tf.runs.pretrain import Start, train_and_finish
from mural_tf.runs.tuning import TunedStart, check_dev, inherited, settings_by_data
from mural_tf.text import build_tokenizer
from mural_tf.text.word_pieces import WordPieceTokenizer
from mural_tf.training.checkpoints import restore_for_inference
from mural_tf.training.trained_model import load_trained

# Settings of a tower that a fine-tuning configuration may change; all others are the source's. The first four are also
# the source's where the configuration leaves them at their defaults.
INHERITED = ("drop_connect_rate", "batch_norm_momentum", "dropout", "precision")
TOWER_SETTINGS = (*INHERITED, "frozen", "cached", "adapter_dropout", "adapter_noise", "frozen_words")
HEAD_SETTINGS = ("head_hidden_size", "adapter_size")
SOURCES_OWN = ("image_tower.", "text_tower.", "vocabulary.", "embedding_size", "shared_head", "model")


def finetune(
    config: ConfigDict,
    source: str,
    workdir: str | pathlib.Path,
    tpu: str = "",
    debug_nans: bool = False,
    profile: str = "",
    given: Collection[str] = (),
) -> None:
    """Fine-tunes from `source`, or goes on where the same command stopped; then evaluates and exports as `pretrain`.

    Args:
      config: data, optimiser, losses and steps; towers, sizes and vocabulary are the source's.
      source: a workdir, an export, a TF-Hub handle or folder of a text encoder, or a published checkpoint
        with both towers (`importers.kind_of`), which becomes a workdir next to the new workdir.
      workdir: the folder of the new run.
      tpu, debug_nans, profile: as `pretrain` takes them.
      given: the fields that the user named, for example "optimizer.name". Other fields at their defaults are taken from
        the source.

    Raises:
      UserError: an unusable source, or a problem of `pretrain`.
    """
    if os.path.realpath(source) == os.path.realpath(workdir):
        raise UserError(f"--workdir={workdir} is the source itself, --from: name a new folder for the tuned model.")
    source = workdir_of(source, workdir)
    if config.method.get("student"):
        config.method.student = workdir_of(config.method.student, workdir, "student", "image_text_head")
    open_batches = [name for name in ("image_text_batch", "text_text_batch") if not config.train[name]]
    config, initialize = starting_point(as_begun(config, workdir, given), source, given)
    check_dev(config)
    start = Start(open_batches)
    if initialize is not None:  # else the tower brings its weights
        start = TunedStart(initialize, open_batches)
    train_and_finish(config, workdir, tpu, debug_nans, profile, start)


def as_begun(config: ConfigDict, workdir: str | pathlib.Path, given: Collection[str] = ()) -> ConfigDict:
    """Returns the configuration with the values that replaced its zeros when the run began: data may grow meanwhile.

    Args:
      config: the configuration of this start.
      workdir: the run's folder, whose config.json has the values; without the file, `config` is returned.
      given: fields, such as "train.steps", that keep the values of `config`.
    """
    path = as_path(workdir) / "config.json"
    if not path.is_file():
        return config
    config = config.copy_and_resolve_references()
    begun = load_config(local_copy(path))
    names = []
    if not config.optimizer.learning_rate:
        names += [("optimizer", field) for field in begun.optimizer]
    if not config.train.steps:
        names += [("train", field) for field in ("steps", "log_every", "evaluate_every", "checkpoint_every")]
    for branch, field in names:
        if f"{branch}.{field}" not in given:
            config[branch][field] = begun[branch][field]
    for field in ("image_text_batch", "text_text_batch"):
        if config.train[field] == 0:
            config.train[field] = begun.train[field]
    return config


def starting_point(
    config: ConfigDict, source: str, given: Collection[str] = ()
) -> tuple[ConfigDict, Callable[[DualEncoder], None] | None]:
    """Returns the configuration with the source's settings, and a function that sets a new model's weights.

    The function is `None` where the tower brings its weights when it is built. If there can be no mix with the source's
    weights at the end, it prints so and sets `train.interpolate` to False.

    Args:
      config, given: as in `finetune`.
      source: a workdir, an export, or a TF-Hub handle or folder of a text encoder.

    Raises:
      UserError: an unusable source, or fields that have to be the source's.
    """
    if source.startswith(("http://", "https://")):
        folder = pathlib.Path(source)
    else:
        folder = newest_description(local_model(source))
    initialize = None
    if (folder / "config.json").exists():
        config, initialize = _from_trained_model(config, source, folder, given)
    else:
        _check_hub_handle(config, source, folder)
        config.text_tower.update(name="hub", handle=source)
        config = settings_by_data(config, base_config(), given)
    is_other_model = initialize is None or config.other_method or method_class(config.model).starts_from
    if config.train.interpolate and is_other_model:
        print("No mix with the source's weights at the end: the run goes on as another model than the source is.")
        config.train.interpolate = False
    return config, initialize


def _from_trained_model(
    config: ConfigDict, source: str, folder: pathlib.Path, given: Collection[str]
) -> tuple[ConfigDict, Callable[[DualEncoder], None]]:
    """Returns the configuration and function of `starting_point` for the `folder` of a workdir or an export."""
    trained = load_config(folder / "config.json")
    student = _student_of(config)
    tuned = _with_source_architecture(config, trained, folder, given, student)
    _check_given(config, tuned, given)
    tuned = _with_source_settings(tuned, trained, given)
    if student is not None:
        if not tuned.method.teacher:  # then the source teaches
            tuned.method.teacher = os.path.abspath(folder)
        return tuned, functools.partial(_restore_both, folder=folder, student=student)
    if (folder / "checkpoints").is_dir():  # a workdir, not an export
        other_method = tuned.other_method or "heads_of" in trained.method  # a stage lacks, for example, SigLIP's bias
        return tuned, functools.partial(_restore_workdir, folder=folder, other_method=other_method)
    if tuned.other_method:
        raise UserError(f"other_method=True starts from a workdir; {source} is an export.")
    return tuned, functools.partial(_restore_export, folder=folder)


def _check_given(user_config: ConfigDict, config: ConfigDict, given: Collection[str]) -> None:
    """Raises `UserError` for a field that the user named, but that has to be the source's.

    Args:
      user_config: the configuration as the user gave it.
      config: the configuration with the source's architecture.
      given: the fields that the user named, such as "embedding_size".
    """
    for name in sorted(given):
        if not name.startswith(SOURCES_OWN):
            continue
        user_value = _value(user_config, name)
        value = _value(config, name)
        if user_value != value:
            raise UserError(
                f"--config.{name}={user_value}: towers, sizes, vocabulary and method are the source's, here {value}. "
                f"Leave it out; of a tower only {', '.join(TOWER_SETTINGS)} can be given."
            )


def _value(config: ConfigDict, name: str) -> object:
    """Returns the value of a field such as "text_tower.name"."""
    for part in name.split("."):
        config = config[part]
    return config


def _with_source_settings(config: ConfigDict, source: ConfigDict, given: Collection[str]) -> ConfigDict:
    """Returns the configuration with the source's augmentation, optimiser and sizes where these are open.

    An open `evaluation.source_data` becomes the source's data, on which forgetting shows, if they are other data.
    """
    config.augmentation.update(inherited(config, source, "augmentation", source.augmentation, given))
    source_data = source.data.directory
    is_other_data = source_data != config.data.directory and as_path(source_data).is_dir()
    if not config.evaluation.source_data and is_other_data:
        config.evaluation.source_data = source_data
    return settings_by_data(config, source, given)


def _student_of(config: ConfigDict) -> pathlib.Path | None:
    """Returns the folder whose text tower takes the place of the source's, `None` if the configuration names none.

    Paths of models in `config` become absolute, because the workdir keeps them. Raises `UserError` for a folder
    without a trained model.
    """
    for name in ("student", "teacher"):
        path = config.method.get(name, "")
        if path and "://" not in path and not suggestion(path):
            config.method[name] = os.path.abspath(os.path.expanduser(path))
    if not config.method.get("student"):
        return None
    folder = newest_description(local_model(config.method.student))
    if not (folder / "config.json").is_file() or not (folder / "vocabulary.txt").is_file():
        raise UserError(
            f"method.student={folder} is neither a workdir nor an export nor a checkpoint of a text tower with its "
            "head: see python -m mural_tf import --help."
        )
    return folder


def _with_source_architecture(
    config: ConfigDict,
    source: ConfigDict,
    folder: pathlib.Path,
    given: Collection[str] = (),
    student: pathlib.Path | None = None,
) -> ConfigDict:
    """Returns the configuration with the towers, vocabulary and method of a source.

    Args:
      config: the run's configuration.
      source: the source's configuration.
      folder: the source's folder.
      given: fields that the user named, such as "text_tower.frozen".
      student: the folder whose text tower and vocabulary take the place of the source's; `None`: the source's stay.
    """
    check_handles(source, folder / "config.json", given=config)
    config = config.copy_and_resolve_references()
    head_settings = {name: config.text_tower[name] for name in HEAD_SETTINGS}
    text_config = source
    if student is not None:
        text_config = load_config(student / "config.json")
        check_stored(text_config, student / "config.json", given=config)
    _take_tower(config, "image_tower", source, given, keeps_cache=True)
    _take_tower(config, "text_tower", text_config, given, keeps_cache=student is None)
    method_of_heads = source.method.get("heads_of", source.model)  # after a stage, the method that it followed
    if _goes_on_as(method_of_heads, config, folder / "config.json"):
        mount(config, method_of_heads)
        config.shared_head = source.shared_head
    elif "heads_of" in config.method:  # a stage whose head is the source's
        config.method.heads_of = method_of_heads
        check_class(config.method.heads_of, folder / "config.json", given=config)
        config.shared_head = source.shared_head
    config.embedding_size = source.embedding_size
    config.origin = source.origin
    config.vocabulary.update(text_config.vocabulary.to_dict())
    config.vocabulary.file = lasting_name((student or folder) / "vocabulary.txt")
    if student is not None:
        _set_bridge(config, text_config, student, head_settings)
    return config


def _take_tower(config: ConfigDict, tower: str, source: ConfigDict, given: Collection[str], keeps_cache: bool) -> None:
    """Replaces the fields of a tower in `config` by the source's, but for `TOWER_SETTINGS`.

    Args:
      config: the run's configuration, which is changed.
      tower: "image_tower" or "text_tower".
      source: the configuration that has the tower.
      given: fields that the user named.
      keeps_cache: let a tower that was frozen and cached in the source stay so.
    """
    settings = {name: config[tower][name] for name in TOWER_SETTINGS if name in config[tower]}
    settings.update(inherited(config, source, tower, INHERITED, given))
    if keeps_cache and source[tower].cached and f"{tower}.frozen" not in given:
        # It stays cached unless the user named `cached=False`.
        settings.update(frozen=True, cached=config[tower].cached or f"{tower}.cached" not in given)
        if f"{tower}.precision" not in given:  # states that are made in another precision are another tower's
            settings["precision"] = source[tower].precision
    config[tower].update(source[tower].to_dict())
    config[tower].update({**settings, "weights": ""})


def _set_bridge(config: ConfigDict, text_config: ConfigDict, student: pathlib.Path, head_settings: dict) -> None:
    """Sets the fields of a bridge in `config`: a new head on the text tower of a student.

    Args:
      config: the run's configuration, which is changed.
      text_config: the student's configuration.
      student: the student's folder, for the message.
      head_settings: the values of `HEAD_SETTINGS`.

    Raises:
      UserError: a head that learns from the student's head, which is of another kind than the default.
    """
    learns_from_student = "student_size" in config.method
    has_other_head = not _has_plain_heads(text_config.model) or text_config.text_tower.adapter_size
    if learns_from_student and has_other_head:
        raise UserError(f"{student} is {text_config.model}, whose head for texts is of its own kind: take another.")
    config.shared_head = False
    config.text_tower.update(head_settings | dict(bridged=True))
    if "heads_of" in config.method:  # a stage: one head of captions, as the pictures' tower was trained with
        config.method.heads_of = "align"
    if not learns_from_student:
        return
    config.method.student_size = text_config.embedding_size
    config.text_tower.head_hidden_size = text_config.text_tower.head_hidden_size


def _goes_on_as(source: str, config: ConfigDict, path: pathlib.Path) -> bool:
    """Whether fine-tuning goes on as the source's method; raises `UserError` for a stage that cannot.

    Args:
      source: the name of the source's method.
      config: the run's configuration.
      path: the source's config.json, for messages.
    """
    method = method_class(config.model)
    if config.other_method and not method.starts_from:
        return False
    check_class(source, path, given=config)
    if not method.starts_from:  # not a stage, such as ETCL: goes on as the source's method
        return True
    if not method.may_start_from(method_class(source)):
        raise UserError(f"{config.model} starts from {method.starts_from}; {path.parent} is {source}.")
    return False


def _has_plain_heads(model: str) -> bool:
    """Whether a method builds the default heads, one dense layer each."""
    return method_class(model).build_head is DualEncoder.build_head


def _check_hub_handle(config: ConfigDict, source: str, folder: pathlib.Path) -> None:
    """Raises `UserError` for a source other than a text tower of TF-Hub, and for any source with a student."""
    if config.method.get("student"):
        raise UserError(
            f"method.student needs a workdir or an export with the pictures' tower; --from={source} is something else."
        )
    if (folder / "image_encoder/saved_model.pb").exists() and (folder / "text_encoder/saved_model.pb").exists():
        raise UserError(
            f"{source} holds an export's Hub modules, which TF-Hub's own layers train: give --from the export or "
            "workdir that they were made from."
        )
    if folder.is_dir() and not (folder / "saved_model.pb").exists():
        raise UserError(
            f"{source} is neither a workdir nor an export (no config.json) nor a TF-Hub module (no saved_model.pb) "
            "nor a folder of them (image_encoder/, text_encoder/, text_preprocessor/)."
        )
    if not folder.exists() and "://" not in source:
        raise UserError(f"{source} does not exist; give a workdir, an export, or a TF-Hub handle or folder.")


def _restore_both(model: DualEncoder, folder: pathlib.Path, student: pathlib.Path) -> Embedder:
    """Sets the weights of a bridge, prints their origin, and returns the embedder of the source, the model in `folder`.

    The text tower is the student's, the new head stays as it is, and everything else is the source's.
    """
    source, tokenizer = _trained_model(folder)
    student_model, _ = _trained_model(student)
    sources = {**source.weights_by_part(), "text_encoder": student_model.text_encoder}
    parts = {name: part for name, part in model.weights_by_part().items() if not name.endswith("_head")}
    if hasattr(model.image_text_head, "own"):  # a head that keeps the student's own head
        parts["own"] = model.image_text_head.own
        sources["own"] = student_model.text_head(student_model.head_names[0])
    for name, part in parts.items():
        for variable, value in zip(variables_of(part), variables_of(sources[name]), strict=True):
            variable.assign(value)
    path = display_name(folder)
    print(f"Starts from the images' side of {path} and the text tower of {display_name(student)}.", flush=True)
    return embedder_of(source, tokenizer, source.configuration, path)


def _trained_model(folder: pathlib.Path) -> tuple[DualEncoder, WordPieceTokenizer]:
    """Returns the model of a workdir or an export, and its tokenizer."""
    if (folder / "checkpoints").is_dir():  # a workdir, not an export
        model, tokenizer, _, _ = load_trained(folder)
        return model, tokenizer
    config = load_config(folder / "config.json")
    tokenizer = build_tokenizer(config, folder / "vocabulary.txt")
    model = build_model(config, tokenizer.vocabulary_size)
    restore_from_export(model, folder)
    return model, tokenizer


def _restore_workdir(model: DualEncoder, folder: pathlib.Path, other_method: bool = False) -> None:
    """Restores a workdir's result and prints its path; with `other_method`, parts that it lacks stay as they are."""
    path = restore_for_inference(model, folder, partly=other_method)
    print(f"Starts from the weights of {display_name(path)}.")


def _restore_export(model: DualEncoder, folder: pathlib.Path) -> None:
    """Copies the variables of an export's Hub modules by name and shape, and the temperature of its model card."""
    restore_from_export(model, folder)
    print(f"Starts from the weights of the export {display_name(folder)}.")
