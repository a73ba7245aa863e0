"""SigLIP (Zhai et al., 2023), its multilingual models and SigLIP 2 (Tschannen et al., 2025) of fixed resolution.

Hugging Face's `SiglipModel` folder (`model_type` "siglip"; "siglip2" is NaFlex, whose patches are another tower's),
open_clip's folder (open_clip_siglip.py), or big_vision's `.npz`, which holds only weights: its vocabulary is named by
`--vocabulary`.

Pixels and casing are read as Hugging Face reads them. With `as_trained` they are what big_vision trained with: only
A to Z are lower-cased, and pictures are resized without anti-aliasing.
"""

from __future__ import annotations

import operator
import pathlib
from collections.abc import Callable, Collection

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import open_clip_siglip, vocabularies
from mural_tf.pretrained.clip import configure_transformer, configure_vision, layer_rows
from mural_tf.pretrained.folders import OPEN_CLIP_CONFIG, folder_of_two_towers
from mural_tf.pretrained.importer import TWO_TOWERS, Importer
from mural_tf.pretrained.keys import read_config
from mural_tf.pretrained.pixels import configure_pixels, siglip_pixels
from mural_tf.pretrained.tables import (
    Row,
    as_is,
    assign_parts,
    convolution,
    first_rows,
    identity_head,
    kernel_and_bias,
    linear,
    no_types,
    norm_rows,
    only_row,
    side_by_side,
)
from mural_tf.pretrained.temperature import configure_scale, scale_row
from mural_tf.pretrained.tokenizer_files import TOKENIZER, check_settings, read_settings, read_tokenizer, template_of
from mural_tf.pretrained.weight_files import WeightFile, open_npz, open_safetensors

HEAD = "params/txt/head"  # the text tower's head in big_vision
TEXT_TOWER = dict(name="bert", norm="before", attention="full", pooling="last", token_embedding_size=0, pooler_size=0)
DEFAULTS = dict(  # Hugging Face's, of both towers
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    hidden_act="gelu_pytorch_tanh",
    layer_norm_eps=1e-6,
)
LAYOUTS = {"unigram": "siglip", "bpe": "siglip2"}  # by the kind of pieces
HUGGING_FACE_CLEANING = {
    "siglip": ("lower_unicode", "no_punctuation", "single_spaces"),
    "siglip2": ("lower_characters",),
}


def hugging_face_table(config: ConfigDict) -> dict[str, list[Row]]:
    """Returns {part of a model: its rows by the names in `SiglipModel`}; `config` is the whole configuration."""
    vision = "vision_model"
    text = "text_model"
    patches = f"{vision}.embeddings.patch_embedding"
    head = f"{vision}.head"
    image_rows = [
        Row("patches/kernel", (f"{patches}.weight",), convolution),
        Row("patches/bias", (f"{patches}.bias",)),
        Row("patches/position_embeddings", (f"{vision}.embeddings.position_embedding.weight",)),
        *layer_rows("block", f"{vision}.encoder.layers", config.image_tower.layers),
        *norm_rows("post_norm", f"{vision}.post_layernorm"),
        Row("pooling/probe", (f"{head}.probe",)),
        Row("pooling/qkv/kernel", (f"{head}.attention.in_proj_weight",), linear),
        Row("pooling/qkv/bias", (f"{head}.attention.in_proj_bias",)),
        *kernel_and_bias("pooling/attention_output", f"{head}.attention.out_proj"),
        *norm_rows("pooling/output_norm", f"{head}.layernorm"),
        *kernel_and_bias("pooling/intermediate", f"{head}.mlp.fc1"),
        *kernel_and_bias("pooling/output", f"{head}.mlp.fc2"),
    ]
    positions = f"{text}.embeddings.position_embedding.weight"
    text_rows = [
        Row("embeddings/token_embeddings", (f"{text}.embeddings.token_embedding.weight",)),
        Row("embeddings/position_embeddings", (positions,), first_rows(config.text_tower.max_length)),
        Row("embeddings/type_embeddings", (positions,), no_types),
        *layer_rows("layer", f"{text}.encoder.layers", config.text_tower.layers),
        *norm_rows("final_norm", f"{text}.final_layer_norm"),
    ]
    head_rows = kernel_and_bias("image_text_head", f"{text}.head")
    return {"image_encoder": image_rows, "text_encoder": text_rows, "image_text_head": head_rows, **_number_rows()}


def _number_rows(scale: str = "logit_scale", bias: str = "logit_bias") -> dict[str, list[Row]]:
    """Returns {part of a model: [its row]} for the two learned numbers, by the file's names `scale` and `bias`."""
    bias_row = Row("bias", (bias,), lambda value: value.reshape([]))
    return {"log_temperature": [scale_row(scale)], "bias": [bias_row]}


def big_vision_table(config: ConfigDict, weights: WeightFile) -> dict[str, list[Row]]:
    """Returns {part of a model: its rows by the names in big_vision's `two_towers` checkpoint}.

    `config` is the whole configuration; `weights` is the file, whose layers and head have several forms.
    """
    image = "params/img"
    pooling = f"{image}/MAPHead_0"
    image_rows = [
        Row("patches/kernel", (f"{image}/embedding/kernel",)),
        Row("patches/bias", (f"{image}/embedding/bias",)),
        Row("patches/position_embeddings", (f"{image}/pos_embedding",), only_row),
        *_big_vision_layers("block", f"{image}/Transformer", config.image_tower.layers, weights),
        *_big_vision_norm("post_norm", f"{image}/Transformer/encoder_norm"),
        Row("pooling/probe", (f"{pooling}/probe",)),
        *_big_vision_layer("pooling", pooling),
        *_big_vision_norm("pooling/output_norm", f"{pooling}/LayerNorm_0"),
    ]

    text = "params/txt"
    positions = [f"{text}/pos_embedding"]
    if f"{text}/Encoder_0/pos_embedding" in weights.shapes:
        positions.append(f"{text}/Encoder_0/pos_embedding")  # some old checkpoints have two tables, to be added
    text_rows = [
        Row("embeddings/token_embeddings", (f"{text}/Embed_0/embedding",)),
        Row("embeddings/position_embeddings", tuple(positions), lambda *tables: sum(map(only_row, tables))),
        Row("embeddings/type_embeddings", tuple(positions[:1]), lambda table: no_types(only_row(table))),
        *_big_vision_layers("layer", f"{text}/Encoder_0", config.text_tower.layers, weights),
        *_big_vision_norm("final_norm", f"{text}/Encoder_0/encoder_norm"),
    ]
    return {
        "image_encoder": image_rows,
        "text_encoder": text_rows,
        "image_text_head": _big_vision_head(config, weights),
        **_number_rows("params/t", "params/b"),
    }


def _big_vision_layers(ours: str, theirs: str, count: int, weights: WeightFile) -> list[Row]:
    """Returns the rows of a tower's layers.

    In the file layers are single arrays, `theirs/encoderblock_3/…`, or stacked, `theirs/encoderblock/…` with an axis
    for the layers in front. Our layers are `ours_0`, `ours_1`, …, `count` of them.
    """
    rows = []
    block = f"{theirs}/encoderblock"
    is_stacked = any(name.startswith(f"{block}/") for name in weights.shapes)
    for number in range(count):
        layer = f"{ours}_{number}"
        if is_stacked:
            source = block
            pick = operator.itemgetter(number)
        else:
            source = f"{block}_{number}"
            pick = as_is
        rows += _big_vision_layer(layer, source, pick)
        rows += _big_vision_norm(f"{layer}/attention_norm", f"{source}/LayerNorm_0", pick)
        rows += _big_vision_norm(f"{layer}/output_norm", f"{source}/LayerNorm_1", pick)
    return rows


def _big_vision_layer(ours: str, theirs: str, pick: Callable = as_is) -> list[Row]:
    """Returns the rows of the attention and feed-forward network of a layer, `ours` here and `theirs` in the file.

    `pick` takes the layer's array out of an array of the file, which may hold all layers.
    """
    attention = f"{theirs}/MultiHeadDotProductAttention_0"
    feed_forward = f"{theirs}/MlpBlock_0"
    projections = [f"{attention}/{projection}" for projection in ("query", "key", "value")]

    def joined_kernels(*kernels):  # [width, heads, size] each, after `pick`
        layers = [pick(kernel) for kernel in kernels]
        return side_by_side(*[layer.reshape(layer.shape[0], -1) for layer in layers])

    def joined_biases(*biases):  # [heads, size] each
        return side_by_side(*[pick(bias).reshape(-1) for bias in biases])

    def output_kernel(kernel):  # [heads, size, width]
        return pick(kernel).reshape(-1, kernel.shape[-1])

    return [
        Row(f"{ours}/qkv/kernel", tuple(f"{name}/kernel" for name in projections), joined_kernels),
        Row(f"{ours}/qkv/bias", tuple(f"{name}/bias" for name in projections), joined_biases),
        Row(f"{ours}/attention_output/kernel", (f"{attention}/out/kernel",), output_kernel),
        Row(f"{ours}/attention_output/bias", (f"{attention}/out/bias",), pick),
        Row(f"{ours}/intermediate/kernel", (f"{feed_forward}/Dense_0/kernel",), pick),
        Row(f"{ours}/intermediate/bias", (f"{feed_forward}/Dense_0/bias",), pick),
        Row(f"{ours}/output/kernel", (f"{feed_forward}/Dense_1/kernel",), pick),
        Row(f"{ours}/output/bias", (f"{feed_forward}/Dense_1/bias",), pick),
    ]


def _big_vision_norm(ours: str, theirs: str, pick: Callable = as_is) -> list[Row]:
    """Returns the rows of a layer normalisation; `pick` is as in `_big_vision_layer`."""
    return [Row(f"{ours}/gamma", (f"{theirs}/scale",), pick), Row(f"{ours}/beta", (f"{theirs}/bias",), pick)]


def _big_vision_head(config: ConfigDict, weights: WeightFile) -> list[Row]:
    """Returns the head's rows; some models end in the text tower itself, and the identity replaces their head."""
    if f"{HEAD}/kernel" not in weights.shapes:
        return identity_head("image_text_head", "params/t", config.embedding_size)
    return [Row(f"image_text_head/{part}", (f"{HEAD}/{part}",)) for part in ("kernel", "bias")]


def configure(weights: str | pathlib.Path, config: ConfigDict, as_trained: bool = False) -> None:
    """Sets both towers, pixels, the embedding's size, temperature and bias in `config` to the SigLIP in `weights`.

    `weights` is a folder or .npz file. With `as_trained` pixels are as big_vision trained with, see the module. Raises
    `UserError` for another model, architecture or preprocessing.
    """
    path = folder_of_two_towers(weights)
    file = open_weights(path)
    if _is_open_clip(path):
        open_clip_siglip.configure(path, config)
    elif path.is_dir():
        _configure_hugging_face(path, config)
    else:
        _configure_big_vision(file, config)
    scale, bias = ("logit_scale", "logit_bias") if path.is_dir() else ("params/t", "params/b")
    configure_scale(file, config.loss, scale)
    configure_bias(file, config, bias)
    if as_trained or not _is_open_clip(path):
        side = config.image_tower.image_size
        configure_pixels(path / "preprocessor_config.json", config.image_tower, side, siglip_pixels(side), as_trained)
    config.text_tower.update(TEXT_TOWER)


def configure_bias(weights: WeightFile, config: ConfigDict, name: str) -> None:
    """Sets the bias of the configuration's method, if it has a bias, to the tensor `name`, if that is a number."""
    if "bias" in config.method and weights.shapes.get(name) in ((), (1,)):  # else `load_weights` says what is wrong
        config.method.bias = float(weights.read(name).reshape([]))


def open_weights(path: pathlib.Path) -> WeightFile:
    """Opens the weights in Hugging Face's folder, open_clip's, or big_vision's .npz file.

    Raises `UserError` if they are missing or damaged.
    """
    if _is_open_clip(path):
        return open_clip_siglip.open_weights(path)
    if path.is_dir():
        return open_safetensors(path)
    return open_npz(path)


def _is_open_clip(path: pathlib.Path) -> bool:
    """Whether a folder is open_clip's, by its configuration."""
    return (path / OPEN_CLIP_CONFIG).is_file()


def _configure_hugging_face(folder: pathlib.Path, config: ConfigDict) -> None:
    """Sets both towers and the embedding's size in `config` by a folder's config.json.

    Raises `UserError` for another model.
    """
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") == "siglip2":
        raise UserError(f"{path}: model_type is 'siglip2', expected 'siglip'; import it as naflex.")
    values = read_config(path, "siglip")
    vision, text = (json_field(values, name, dict, path, {}) for name in ("vision_config", "text_config"))
    if not vision.get("vision_use_head", True):
        raise UserError(f"{path}: vision_config.vision_use_head is false, expected a tower with attention pooling.")
    configure_vision(config.image_tower, {**DEFAULTS, "patch_size": 16, **vision}, path, "attention")
    text = {**DEFAULTS, "max_position_embeddings": 64, **text}
    configure_transformer(config.text_tower, text, path, "text_config")
    config.text_tower.max_length = json_field(text, "max_position_embeddings", int, path)
    config.embedding_size = json_field(text, "projection_size", int, path, config.text_tower.hidden_size)


def _configure_big_vision(weights: WeightFile, config: ConfigDict) -> None:
    """Sets both towers and the embedding's size in `config` by the arrays' shapes in big_vision's file.

    Pooling, activation and epsilon, which shapes do not tell, are SigLIP's. Raises `UserError` for another model.
    """
    shapes = weights.shapes
    patches_shape = shapes.get("params/img/embedding/kernel", ())  # [patch size, patch size, channels, width]
    positions_shape = shapes.get("params/img/pos_embedding", ())  # [1, patches, width]
    tokens_shape = shapes.get("params/txt/pos_embedding", ())  # [tokens, width], or with 1 in front
    if len(patches_shape) != 4 or len(positions_shape) != 3 or len(tokens_shape) < 2:
        raise UserError(
            f"{weights.path}: params/img/embedding/kernel is {list(patches_shape)}, params/img/pos_embedding "
            f"{list(positions_shape)}, params/txt/pos_embedding {list(tokens_shape)}: expected big_vision's SigLIP of "
            "fixed resolution (NaFlex is another tower)."
        )
    patch_size = patches_shape[0]
    image_size = round(positions_shape[1] ** 0.5) * patch_size  # as many patches in each row as in each column
    config.image_tower.update(_big_vision_sizes(weights, "params/img/Transformer"))
    config.image_tower.update(
        name="vit", patch_size=patch_size, pooling="attention", projection=0, image_size=image_size
    )
    config.text_tower.update(**_big_vision_sizes(weights, "params/txt/Encoder_0"), max_length=tokens_shape[-2])
    # The kernel is [width, embedding size]; without a head the embedding is as wide as the text tower.
    config.embedding_size = shapes.get(f"{HEAD}/kernel", (0, config.text_tower.hidden_size))[1]


def _big_vision_sizes(weights: WeightFile, encoder: str) -> dict[str, object]:
    """Returns {field of a tower: value} for the layers in an `encoder` of the file, by the shapes of their arrays.

    Raises `UserError` without such layers.
    """
    shapes = weights.shapes
    names = [name for name in shapes if name.startswith(f"{encoder}/encoderblock")]
    queries = [name for name in names if name.endswith("_0/query/kernel")]
    feed_forward = [name for name in names if name.endswith("Dense_0/kernel")]
    if not queries or not feed_forward:
        raise UserError(f"{weights.path} has no {encoder}: expected big_vision's SigLIP.")
    # [width, heads, size] for each layer, or [layers, width, heads, size].
    *layer_axis, hidden_size, heads, _ = shapes[queries[0]]
    layers = len(queries)
    if layer_axis:
        layers = layer_axis[0]
    return dict(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        feed_forward_size=shapes[feed_forward[0]][-1],
        activation="gelu_tanh",
        epsilon=1e-6,
    )


def read_vocabulary(weights: str | pathlib.Path, config: ConfigDict, as_trained: bool = False) -> list[str]:
    """Returns the lines of the tower's SentencePiece vocabulary by id, and sets `config.vocabulary` to how it is used.

    Args:
      weights: a folder with the vocabulary, or an .npz file, whose vocabulary `config.vocabulary.file` names.
      config: the configuration that is changed.
      as_trained: whether texts are lower-cased as in big_vision's training, see the module.

    Raises:
      UserError: the vocabulary is missing, or of another kind or size.
    """
    path = folder_of_two_towers(weights)
    row_count = _token_count(path)
    if path.is_dir():
        check_settings(path, "siglip")
        _check_end(path)
        pieces_file = vocabularies.find_sentence_pieces(path)
    elif config.vocabulary.file:
        pieces_file = config.vocabulary.file
    else:
        raise UserError(
            f"{path} holds no vocabulary: give the SentencePiece model or tokenizer.json of its training with "
            "--vocabulary=FILE."
        )
    lines, piece_kind = vocabularies.read_sentence_pieces(pieces_file, row_count)
    layout = LAYOUTS[piece_kind]
    if as_trained:
        cleaning = ("lower_ascii",)
    elif _is_open_clip(path):
        cleaning = open_clip_siglip.cleaning(path)
    else:
        cleaning = HUGGING_FACE_CLEANING[layout]
    vocabularies.use_sentence_pieces(config, lines, layout, cleaning)
    return lines


def _token_count(path: pathlib.Path) -> int:
    """Returns how many rows the table of tokens has, 0 if it is missing, which `load_weights` will report."""
    if _is_open_clip(path):
        name = open_clip_siglip.TOKENS
    elif path.is_dir():
        name = "text_model.embeddings.token_embedding.weight"
    else:
        name = "params/txt/Embed_0/embedding"
    rows, *_ = open_weights(path).shapes.get(name, (0,))
    return rows


def _check_end(folder: pathlib.Path) -> None:
    """Raises `UserError` for a folder whose tokenizer says that it puts no token at the end of texts."""
    names = template_of(read_tokenizer(folder), folder / TOKENIZER)
    if names == [""] and read_settings(folder).get("add_eos_token") is not True:
        raise UserError(f"{folder / TOKENIZER}: its post_processor makes rows of text alone; expected an end of texts.")


def load_weights(weights: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for `configure`'s settings.

    Raises `UserError`, and changes nothing, unless all names and shapes fit.
    """
    path = folder_of_two_towers(weights)
    file = open_weights(path)
    if _is_open_clip(path):
        tables = {**open_clip_siglip.table(config, file), **_number_rows()}
    elif path.is_dir():
        tables = hugging_face_table(config)
    else:
        tables = big_vision_table(config, file)
    assign_parts(tables, model, parts, file, r".*position_ids", "a SigLIP")


IMPORTER = Importer(
    (*TWO_TOWERS, "bias"),
    configure,
    load_weights,
    read_vocabulary,
    method="siglip",
    open_weights=lambda weights: open_weights(folder_of_two_towers(weights)),
)
