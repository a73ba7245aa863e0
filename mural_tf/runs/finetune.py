"""Fine-tuning: a trained model's towers, heads, temperature and vocabulary on new data with new settings.

[MURAL] §3.1: single-task (image-text only) is the default; multi-task on co-captions is the ablation
(`data.text_pairs="co_captions"` and a text-text weight). The source is a workdir, an export, an export's `hub` folder
(its modules alone, as they are passed on), or, for the text tower alone, a TF-Hub handle or folder.
"""

from __future__ import annotations

import functools
import json
import pathlib

import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.config import load_config
from mural_tf.errors import UserError
from mural_tf.models import method_class, mount
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.runs.pretrain import train_and_finish
from mural_tf.training.checkpoints import restore_for_inference

# What a fine-tuning configuration may change of a tower it takes over; everything else is the source's.
TOWER_SETTINGS = ("drop_connect_rate", "batch_norm_momentum", "dropout", "precision", "frozen", "frozen_words")


def finetune(
    config: ConfigDict,
    source: str,
    workdir: str | pathlib.Path,
    tpu: str = "",
    debug_nans: bool = False,
    profile: str = "",
) -> None:
    """Fine-tunes from `source`, or goes on where the same command stopped; then as `pretrain`.

    Args:
      config: data, optimiser, losses and steps; towers, sizes and vocabulary are the source's.
      source: a workdir, an export, its `hub` folder, or a TF-Hub handle or folder of a text encoder.
      workdir: of the new run.
      tpu, debug_nans, profile: as `pretrain` takes them.

    Raises:
      UserError: a source that cannot be used, or anything `pretrain` raises it for.
    """
    folder = pathlib.Path(source)
    if (folder / "config.json").exists():
        config = _with_source_architecture(config, load_config(folder / "config.json"), folder)
        restore = _restore_export
        if (folder / "checkpoints").is_dir():
            restore = functools.partial(_restore_workdir, other_method=config.other_method)
        elif config.other_method:
            raise UserError(f"other_method=True starts from a workdir; {source} is an export.")
    elif (folder / "image_encoder/saved_model.pb").exists() and (folder / "text_encoder/saved_model.pb").exists():
        config = _with_hub_towers(config, folder)
        restore = _restore_hub
    else:
        _check_hub_handle(source, folder)
        config.text_tower.update(dict(name="hub", handle=source))
        if not config.vocabulary.file:
            raise UserError(
                f"{source} is taken as a TF-Hub text encoder; name its word pieces with --config.vocabulary.file=…."
            )
        restore = None  # the tower brings its weights when it is built
    initialize = None if restore is None else lambda model: restore(model, folder)
    train_and_finish(config, workdir, tpu, debug_nans, profile, initialize)


def _with_source_architecture(config: ConfigDict, source: ConfigDict, folder: pathlib.Path) -> ConfigDict:
    config = config.copy_and_resolve_references()
    for tower in ("image_tower", "text_tower"):
        kept = {name: config[tower][name] for name in TOWER_SETTINGS if name in config[tower]}
        config[tower].update(source[tower].to_dict())
        config[tower].update(kept)
    starts_from = method_class(config.model).starts_from  # of a stage, such as ETCL; the others go on as what they were
    if starts_from and source.model not in starts_from:
        raise UserError(f"{config.model} starts from {' or '.join(starts_from)}; {folder} is {source.model}.")
    if not starts_from and not config.other_method:
        mount(config, source.model)
        config.shared_head = source.shared_head
    config.embedding_size = source.embedding_size
    config.vocabulary.update(source.vocabulary.to_dict())
    config.vocabulary.file = str(folder / "vocabulary.txt")
    return config


def _with_hub_towers(config: ConfigDict, folder: pathlib.Path) -> ConfigDict:
    """Both towers and the vocabulary from an export's Hub modules."""
    assets = {name: folder / name / "assets" for name in ("image_encoder", "text_preprocessor")}
    try:
        image, text = (json.loads((path / "settings.json").read_text(encoding="utf-8")) for path in assets.values())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds modules but not what they were made with ({error}); give the whole folder hub/ of an "
            "export, or set image_tower.handle and text_tower.handle in a configuration of your own."
        ) from None
    config = config.copy_and_resolve_references()
    config.embedding_size = image.pop("embedding_size")
    config.image_tower.update(dict(name="hub", handle=str(folder / "image_encoder"), projection=0, **image))
    config.text_tower.update(dict(name="hub", handle=str(folder / "text_encoder"), max_length=text.pop("max_length")))
    config.vocabulary.update(dict(file=str(assets["text_preprocessor"] / "vocabulary.txt"), **text))
    return config


def _restore_hub(model: DualEncoder, folder: pathlib.Path) -> None:
    """The modules bring their weights; the new heads start as the identity, so that nothing of the model is lost."""
    for name in model.head_names:
        kernel, bias = model.text_head(name).variables
        kernel.assign(tf.eye(*kernel.shape))
        bias.assign(tf.zeros_like(bias))
    print(f"Starts from the modules in {folder}.")


def _check_hub_handle(source: str, folder: pathlib.Path) -> None:
    if folder.is_dir() and not (folder / "saved_model.pb").exists():
        raise UserError(
            f"{source} is neither a workdir nor an export (no config.json) nor a TF-Hub module (no saved_model.pb) "
            "nor a folder of them (image_encoder/, text_encoder/, text_preprocessor/)."
        )
    if not folder.exists() and "://" not in source:
        raise UserError(f"{source} does not exist; give a workdir, an export, or a TF-Hub handle or folder.")


def _restore_workdir(model: DualEncoder, folder: pathlib.Path, other_method: bool = False) -> None:
    path = restore_for_inference(model, folder, partly=other_method)
    print(f"Starts from the weights of {path}.")


def _restore_export(model: DualEncoder, folder: pathlib.Path) -> None:
    """Copies the variables of an export's Hub modules, by name and shape; the temperature is in the model card."""
    from mural_tf.export.hub_modules import restore_from_export

    restore_from_export(model, folder)
    print(f"Starts from the weights of the export {folder}.")
