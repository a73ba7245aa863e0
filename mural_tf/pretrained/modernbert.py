"""Hugging Face's `ModernBertModel` as safetensors, granite-embedding R2 and mmBERT: names, config.json and pieces.

A `ModernBertModel`, or the `model.` part of one with heads of pretraining or classification, which are left out. The
pieces are Gemma's (byte pairs with byte fallback) or byte-level, and tokenizer.json's template has the begin and the
end of rows. Every key of config.json is used, has no effect on states, or is refused in a line that names it.
Sentence-Transformers' folders of these towers are read by `sentence_transformers.py`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.backend import keras
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import byte_level_pieces
from mural_tf.pretrained.importer import Importer
from mural_tf.pretrained.keys import FREE, GENERIC, check_keys, object_or_empty, read_config, transformer_sizes
from mural_tf.pretrained.tables import Row, assign, linear
from mural_tf.pretrained.tokenizer_files import (
    TOKENIZER,
    check_settings,
    read_settings,
    read_tokenizer,
    template_of,
    warn_of_added_tokens,
)
from mural_tf.pretrained.vocabularies import fit_rows, token_rows, use_sentence_pieces
from mural_tf.pretrained.weight_files import WeightFile, open_safetensors
from mural_tf.text import piece_models

MODEL_TYPE = "modernbert"
IGNORED = r"head\..*|decoder\..*|classifier\..*|.*inv_freq"
# The file's names of a layer's attention.
LOCAL = "sliding_attention"
GLOBAL = "full_attention"
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}  # theirs: ours
# Keys of training and of heads; files have `layer_norm_eps` and `position_embedding_type`, and `norm_eps` and rotations
# are used.
WITHOUT_EFFECT = (
    "initializer_cutoff_factor classifier_activation classifier_bias classifier_dropout classifier_pooling "
    "decoder_bias deterministic_flash_attn sparse_prediction sparse_pred_ignore_index reference_compile "
    "repad_logits_with_grad embedding_dropout mlp_dropout layer_norm_eps position_embedding_type"
).split()
USED = (
    "hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_activation norm_eps "
    "max_position_embeddings local_attention layer_types global_attn_every_n_layers rope_parameters "
    "global_rope_theta local_rope_theta"
).split()
KEYS = {
    **GENERIC,
    **dict.fromkeys((*WITHOUT_EFFECT, *USED), FREE),
    "auto_map": ({},),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "causal_mask"), (False,)),
    "rope_scaling": (),
    "head_dim": (),
}


def table(layers: int) -> list[Row]:
    """Returns the rows of a text tower of so many layers by the names in `ModernBertModel`."""

    def kernel(ours: str, theirs: str) -> Row:
        return Row(f"{ours}/kernel", (f"{theirs}.weight",), linear)

    def norm(ours: str, theirs: str) -> Row:
        return Row(f"{ours}/gamma", (f"{theirs}.weight",))

    rows = [
        Row("embeddings/token_embeddings", ("embeddings.tok_embeddings.weight",)),
        norm("embeddings/layer_norm", "embeddings.norm"),
        norm("final_norm", "final_norm"),
    ]
    for i in range(layers):
        rows += [
            kernel(f"layer_{i}/qkv", f"layers.{i}.attn.Wqkv"),
            kernel(f"layer_{i}/attention_output", f"layers.{i}.attn.Wo"),
            kernel(f"layer_{i}/intermediate", f"layers.{i}.mlp.Wi"),
            kernel(f"layer_{i}/output", f"layers.{i}.mlp.Wo"),
            norm(f"layer_{i}/output_norm", f"layers.{i}.mlp_norm"),
        ]
        if i:  # the first layer attends to the embeddings, which have a norm already
            rows.append(norm(f"layer_{i}/attention_norm", f"layers.{i}.attn_norm"))
    return rows


def configure(folder: str | pathlib.Path, config: ConfigDict, length: Callable[[int], int] | None = None) -> None:
    """Sets the text tower in `config` to the ModernBERT in a folder.

    Args:
      folder: a folder with config.json.
      config: the configuration that is changed.
      length: returns the tower's `max_length` for the length that the weights were trained for, both in tokens; without
        it `text_tower.max_length` does not change.

    Raises:
      UserError: config.json is missing or of another architecture, has an unknown key, a value that this package does
        not support or none of a size; or `text_tower.max_length` is longer than the weights were trained for.
    """
    path = pathlib.Path(folder) / "config.json"
    values = read_config(path, MODEL_TYPE)
    check_keys(values, KEYS, path)
    activation = json_field(values, "hidden_activation", str, path, "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(f"{path}: hidden_activation is {activation!r}, expected one of {', '.join(ACTIVATIONS)}.")
    tower = config.text_tower
    tower.update(
        name="modernbert",
        **transformer_sizes(values, path),
        token_embedding_size=0,
        pooler_size=0,
        epsilon=float(json_field(values, "norm_eps", float, path, 1e-5)),
        norm="before",
        activation=ACTIVATIONS[activation],
        attention="masked",
        attention_every=_attention_every(values, path),
        attention_window=json_field(values, "local_attention", int, path, 128) // 2,  # theirs is of both sides
        rotary_bases=_rotary_bases(values, path),
    )
    if tower.pooling != "mean":
        tower.pooling = "first"
    trained_length = json_field(values, "max_position_embeddings", int, path, 8192)
    if length is not None:
        tower.max_length = length(trained_length)
    if tower.max_length > trained_length:
        raise UserError(
            f"text_tower.max_length={tower.max_length}, and {path} says texts of {trained_length} tokens: take at most "
            "these."
        )


def _attention_every(values: dict, path: pathlib.Path) -> int:
    """Returns the distance in layers from a layer with global attention to the next: 3 for layers 0, 3, 6, …

    `values` are from the config.json at `path`. Raises `UserError` for layers at other distances.
    """
    distance = json_field(values, "global_attn_every_n_layers", int, path, 3)
    if values.get("layer_types") is None:
        return distance
    types = json_field(values, "layer_types", list[str], path)
    # Without a further global layer any distance beyond the last layer will do.
    further_global = [number for number, name in enumerate(types) if name == GLOBAL and number]
    every = further_global[0] if further_global else max(len(types), 1)
    expected = [LOCAL if number % every else GLOBAL for number in range(len(types))]
    if types != expected or len(types) != values.get("num_hidden_layers"):
        raise UserError(
            f"{path}: layer_types are {', '.join(types)}; expected one for each layer, {GLOBAL!r} at equal distances "
            f"from the first on and {LOCAL!r} between."
        )
    return every


def _rotary_bases(values: dict, path: pathlib.Path) -> tuple[float, float]:
    """Returns the bases of rotations in (global layers, local layers), theta in transformers' keys.

    `values` are from the config.json at `path`: `rope_parameters` of newer files, else the keys of older files. Raises
    `UserError` for other kinds of positions.
    """
    parameters = object_or_empty(values, "rope_parameters", path)
    check_keys(parameters, {GLOBAL: FREE, LOCAL: FREE}, path)
    bases = []
    for layer_type, old_key, default in (
        (GLOBAL, "global_rope_theta", 160_000.0),
        (LOCAL, "local_rope_theta", 10_000.0),
    ):
        settings = object_or_empty(parameters, layer_type, path)
        check_keys(settings, {"rope_theta": FREE, "rope_type": ("default",)}, path)
        old_base = default
        if values.get(old_key) is not None:
            old_base = json_field(values, old_key, float, path, default)
        bases.append(float(json_field(settings, "rope_theta", float, path, old_base)))
    return tuple(bases)


def load_weights(folder: str | pathlib.Path, encoder: keras.Model, tower: ConfigDict) -> None:
    """Fills a text tower built for `configure`'s settings; `UserError`, and no change, unless names and shapes fit."""
    assign(table(tower.layers), encoder.variables, open_weights(folder), IGNORED, "a ModernBERT")


def open_weights(folder: str | pathlib.Path) -> WeightFile:
    """Opens a folder's weights under the names of `ModernBertModel`; raises as `open_safetensors`."""
    return open_safetensors(folder).renamed(lambda name: name.removeprefix("model."))


def read_vocabulary(folder: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns the lines of a folder's vocabulary by id, and sets `config.vocabulary` to how it is used.

    Logs a warning for added tokens that are not among the pieces. Raises `UserError` for pieces of another kind, and
    for rows that are not begin, text, end.
    """
    folder = pathlib.Path(folder)
    path = folder / TOKENIZER
    tokenizer = read_tokenizer(folder)
    if not tokenizer:
        raise UserError(f"{folder} has no {TOKENIZER}: expected the pieces of a ModernBERT in it.")
    check_settings(folder, "gemma")
    names = template_of(tokenizer, path) or []
    if len(names) != 3 or names[1] or not names[0] or not names[2]:  # "" is the text
        raise UserError(f"{path}: its post_processor makes rows of {names or 'text alone'}; expected begin, text, end.")
    settings = read_settings(folder)
    pad = settings.get("pad_token", "<pad>")
    pad = pad.get("content") if isinstance(pad, dict) else pad
    cleaning: tuple[str, ...] = ()
    if byte_level_pieces.is_byte_level(tokenizer):
        cleaning = byte_level_pieces.cleaning_of(tokenizer, path)
        lines = byte_level_pieces.byte_level_lines(tokenizer, path)
    else:
        lines = piece_models.read_lines(path)
    lines = fit_rows(lines, token_rows(open_safetensors(folder)), path)
    pieces, _ = piece_models.parse_lines(lines, path)
    warn_of_added_tokens(folder, [piece for piece, _, _ in pieces])
    use_sentence_pieces(config, lines, f"{names[0]} {names[2]} {pad}", cleaning)
    return lines


def _load(folder, model: DualEncoder, config: ConfigDict, parts) -> None:
    """Fills the text tower of a model, as `Importer.load_weights`."""
    load_weights(folder, model.text_encoder, config.text_tower)


def is_modernbert(folder: str | pathlib.Path) -> bool:
    """Whether a folder of Hugging Face holds a ModernBERT, by its config.json."""
    return read_json(pathlib.Path(folder) / "config.json").get("model_type") == MODEL_TYPE


IMPORTER = Importer(("text_encoder",), configure, _load, read_vocabulary, open_weights=open_weights)
