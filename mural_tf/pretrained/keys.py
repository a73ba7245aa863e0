"""The keys of a checkpoint's configuration: used, without effect on vectors, or refused in a line that names them."""

from __future__ import annotations

import pathlib
import reprlib
from collections.abc import Mapping

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json

FREE = object()  # any value is right: it is used, or it changes no vector
# Keys of every configuration of transformers 4 and 5 that change no vector: names, training, generation.
_WITHOUT_EFFECT = (
    "_name_or_path architectures dtype torch_dtype transformers_version model_type vocab_size id2label label2id "
    "chunk_size_feed_forward output_attentions output_hidden_states problem_type return_dict tie_word_embeddings "
    "use_cache gradient_checkpointing attention_dropout initializer_range initializer_factor "
    "_attn_implementation_autoset bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id "
    "unk_token_id decoder_start_token_id torchscript use_bfloat16 tf_legacy_loss cross_attention_hidden_size "
    "tie_encoder_decoder max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty "
    "temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate "
    "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens finetuning_task tokenizer_class prefix task_specific_params"
).split()
# Keys of every configuration, as `check_keys` takes them.
GENERIC = {
    **dict.fromkeys(_WITHOUT_EFFECT, FREE),
    **dict.fromkeys(("is_encoder_decoder", "is_decoder", "add_cross_attention"), (False,)),
    "pruned_heads": ({},),
    "quantization_config": (),
}


def read_config(path: pathlib.Path, model_type: str) -> dict:
    """Returns the content of Hugging Face's config.json; raises `UserError` for another `model_type`."""
    values = read_json(path)
    if values.get("model_type") != model_type:
        raise UserError(f"{path}: model_type is {values.get('model_type')!r}, expected {model_type!r}.")
    return values


def json_or_empty(path: pathlib.Path) -> dict:
    """Returns the object in a JSON file, {} without the file; raises `UserError` for a damaged file."""
    return read_json(path) if path.is_file() else {}


def object_or_empty(values: Mapping, key: str, path: pathlib.Path) -> dict:
    """Returns the object under a key of the JSON file at `path`; {} where it is missing, null, empty, 0 or false.

    Raises `UserError` for any other value.
    """
    return json_field(values, key, dict, path) if values.get(key) else {}


def transformer_sizes(values: Mapping, path: pathlib.Path) -> dict[str, int]:
    """Returns {"layers", "hidden_size", "heads", "feed_forward_size": number} of a tower, by Hugging Face's keys.

    `values` are from the file at `path`; raises `UserError`, which names it, for a missing size.
    """
    return dict(
        layers=json_field(values, "num_hidden_layers", int, path),
        hidden_size=json_field(values, "hidden_size", int, path),
        heads=json_field(values, "num_attention_heads", int, path),
        feed_forward_size=json_field(values, "intermediate_size", int, path),
    )


def check_keys(values: Mapping, allowed: Mapping, path: pathlib.Path, refuses_unknown: bool = True) -> None:
    """Raises `UserError` for a configuration value that this package does not support.

    Args:
      values: {key: value} of a JSON file, or of an object in it; null is always accepted.
      allowed: {key: its supported values}, or `FREE` for a key of any value.
      path: the file, named in the message.
      refuses_unknown: whether a key that `allowed` lacks raises as well.
    """
    for key, value in values.items():
        if key not in allowed:
            if refuses_unknown:
                raise UserError(f"{path}: unknown key {key}, which may change the vectors, so the folder is not read.")
            continue
        supported = allowed[key]
        if value is None or supported is FREE or value in supported:
            continue
        expected = " or ".join(map(repr, supported)) or "null"
        raise UserError(f"{path}: {key} is {reprlib.repr(value)}, and only {expected} is supported.")
