"""SigLIP (Zhai et al., 2023), its multilingual models and SigLIP 2 (Tschannen et al., 2025) of fixed resolution.

Hugging Face's `SiglipModel` folder (`model_type` "siglip"; "siglip2" is NaFlex, whose patches are another tower's),
open_clip's folder (open_clip_siglip.py), or big_vision's `.npz`, which holds weights alone: its vocabulary is named by
`--vocabulary`.

Pixels and casing are read as Hugging Face reads them. With `as_trained` they are what big_vision trained with: only
A to Z are lower-cased, and pictures are resized without anti-aliasing.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Collection

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import json_field, read_json
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import open_clip_siglip, vocabularies
from mural_tf.pretrained.clip import (
    ACTIVATIONS,
    OPEN_CLIP_CONFIG,
    TEMPERATURE,
    configure_scale,
    configure_vision,
    layer_rows,
    zeros_for,
)
from mural_tf.pretrained.pixels import configure_pixels, siglip_pixels
from mural_tf.pretrained.sentence_transformers import folder_of_two_towers
from mural_tf.pretrained.tables import (
    Row,
    as_is,
    assign_parts,
    convolution,
    first_rows,
    kernel_and_bias,
    linear,
    no_types,
    norm_rows,
    only_row,
)
from mural_tf.pretrained.tokenizer_files import check_settings
from mural_tf.pretrained.weight_files import WeightFile, open_npz, open_safetensors

HEAD = "params/txt/head"  # of the text tower in big_vision
LAYOUTS = {"unigram": "siglip", "bpe": "siglip2"}  # by the kind of pieces
HUGGING_FACE_CLEANING = {
    "siglip": ("lower_unicode", "no_punctuation", "single_spaces"),
    "siglip2": ("lower_characters",),
}


def hugging_face_table(config: ConfigDict) -> dict[str, list[Row]]:
    """The variables of each part and their names in `SiglipModel`."""
    vision, text = "vision_model", "text_model"
    patches, head = f"{vision}.embeddings.patch_embedding", f"{vision}.head"
    tokens = f"{text}.embeddings.token_embedding.weight"
    image = [
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
    positions, length = f"{text}.embeddings.position_embedding.weight", config.text_tower.max_length
    texts = [
        Row("embeddings/token_embeddings", (tokens,)),
        Row("embeddings/position_embeddings", (positions,), first_rows(length)),
        Row("embeddings/type_embeddings", (positions,), no_types),
        *layer_rows("layer", f"{text}.encoder.layers", config.text_tower.layers),
        *norm_rows("final_norm", f"{text}.final_layer_norm"),
    ]
    head = kernel_and_bias("image_text_head", f"{text}.head")
    return {"image_encoder": image, "text_encoder": texts, "image_text_head": head, **NUMBERS}


NUMBERS = {"log_temperature": [TEMPERATURE], "bias": [Row("bias", ("logit_bias",), lambda value: value.reshape([]))]}


def big_vision_table(config: ConfigDict, weights: WeightFile) -> dict[str, list[Row]]:
    """The variables of each part and their names in big_vision's `two_towers` checkpoint.

    Layers are single, `encoderblock_3/…`, or stacked, `encoderblock/…` with L in front.
    """

    def inner(ours: str, theirs: str, pick=as_is) -> list[Row]:
        def row(name, end, layout):
            return Row(f"{ours}/{name}", tuple(f"{theirs}/{side}" for side in np.atleast_1d(end)), layout)

        attention = "MultiHeadDotProductAttention_0"
        projections = [f"{attention}/{part}" for part in ("query", "key", "value")]
        return [
            row("qkv/kernel", [f"{p}/kernel" for p in projections], lambda *v: np.concatenate([
                pick(x).reshape(pick(x).shape[0], -1) for x in v], axis=1)),
            row("qkv/bias", [f"{p}/bias" for p in projections], lambda *v: np.concatenate([
                pick(x).reshape(-1) for x in v])),
            row("attention_output/kernel", f"{attention}/out/kernel", lambda v: pick(v).reshape(-1, v.shape[-1])),
            row("attention_output/bias", f"{attention}/out/bias", pick),
            *(row(f"{mine}/{end}", f"MlpBlock_0/{other}/{end}", pick)
              for mine, other in (("intermediate", "Dense_0"), ("output", "Dense_1")) for end in ("kernel", "bias")),
        ]  # fmt: skip

    def norm(ours: str, theirs: str, pick=as_is) -> list[Row]:
        return [Row(f"{ours}/gamma", (f"{theirs}/scale",), pick), Row(f"{ours}/beta", (f"{theirs}/bias",), pick)]

    def layers(ours: str, theirs: str, count: int) -> list[Row]:
        rows = []
        stacked = any(name.startswith(f"{theirs}/encoderblock/") for name in weights.shapes)
        for i in range(count):
            block = f"{theirs}/encoderblock" + ("" if stacked else f"_{i}")
            pick = functools.partial(_layer, i) if stacked else as_is
            rows += inner(f"{ours}_{i}", block, pick)
            rows += norm(f"{ours}_{i}/attention_norm", f"{block}/LayerNorm_0", pick)
            rows += norm(f"{ours}_{i}/output_norm", f"{block}/LayerNorm_1", pick)
        return rows

    image, text, pooling = "params/img", "params/txt", "params/img/MAPHead_0"
    more = f"{text}/Encoder_0/pos_embedding"  # of some old checkpoints, to be added
    positions = (f"{text}/pos_embedding", *([more] if more in weights.shapes else []))
    return {
        "image_encoder": [
            Row("patches/kernel", (f"{image}/embedding/kernel",)),
            Row("patches/bias", (f"{image}/embedding/bias",)),
            Row("patches/position_embeddings", (f"{image}/pos_embedding",), only_row),
            *layers("block", f"{image}/Transformer", config.image_tower.layers),
            *norm("post_norm", f"{image}/Transformer/encoder_norm"),
            Row("pooling/probe", (f"{pooling}/probe",)),
            *inner("pooling", pooling),
            *norm("pooling/output_norm", f"{pooling}/LayerNorm_0"),
        ],
        "text_encoder": [
            Row("embeddings/token_embeddings", (f"{text}/Embed_0/embedding",)),
            Row("embeddings/position_embeddings", positions, lambda *tables: sum(map(only_row, tables))),
            Row("embeddings/type_embeddings", positions[:1], lambda table: no_types(only_row(table))),
            *layers("layer", f"{text}/Encoder_0", config.text_tower.layers),
            *norm("final_norm", f"{text}/Encoder_0/encoder_norm"),
        ],
        "image_text_head": _big_vision_head(config, weights),
        "log_temperature": [Row("log_temperature", ("params/t",), TEMPERATURE.layout)],
        "bias": [Row("bias", ("params/b",), NUMBERS["bias"][0].layout)],
    }


def _big_vision_head(config: ConfigDict, weights: WeightFile) -> list[Row]:
    """The head's rows; some models end in the text tower itself, and the identity replaces it."""
    kernel, bias = (f"{HEAD}/{end}" for end in ("kernel", "bias"))
    if kernel in weights.shapes:
        return [Row("image_text_head/kernel", (kernel,)), Row("image_text_head/bias", (bias,))]
    size, scale = config.embedding_size, "params/t"
    eye = Row("image_text_head/kernel", (scale,), lambda _: np.eye(size, dtype=np.float32))
    return [eye, zeros_for("image_text_head/bias", scale, size)]


def _layer(i: int, value: np.ndarray) -> np.ndarray:
    return value[i]


def configure(weights: str | pathlib.Path, config: ConfigDict, as_trained: bool = False) -> None:
    """Sets both towers, pixels, the embedding's size, temperature and bias in `config` to the SigLIP of a folder or
    .npz file.

    Raises `UserError` for another model, architecture or preprocessing.
    """
    path = folder_of_two_towers(pathlib.Path(weights))
    file = open_weights(path)
    if _is_open_clip(path):
        open_clip_siglip.configure(path, config)
    elif path.is_dir():
        _configure_hugging_face(path, config)
    else:
        _configure_big_vision(file, config)
    scale, bias = ("logit_scale", "logit_bias") if path.is_dir() else ("params/t", "params/b")
    configure_scale(file, config.loss, scale)
    if "bias" in config.method and file.shapes.get(bias) in ((), (1,)):  # else `load` says what is wrong
        config.method.bias = float(file.read(bias).reshape([]))
    if as_trained or not _is_open_clip(path):
        side = config.image_tower.image_size
        configure_pixels(path / "preprocessor_config.json", config.image_tower, side, siglip_pixels(side), as_trained)
    config.text_tower.update(
        dict(name="bert", norm="before", attention="full", pooling="last", token_embedding_size=0, pooler=False)
    )


def open_weights(path: pathlib.Path) -> WeightFile:
    """Opens Hugging Face's folder, open_clip's, or big_vision's file."""
    if _is_open_clip(path):
        return open_clip_siglip.open_weights(path)
    return open_safetensors(path) if path.is_dir() else open_npz(path)


def _is_open_clip(path: pathlib.Path) -> bool:
    return (path / OPEN_CLIP_CONFIG).is_file()


def _configure_hugging_face(folder: pathlib.Path, config: ConfigDict) -> None:
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != "siglip":
        naflex = "; it is NaFlex, whose image tower takes pictures of any shape, and is not supported" * (
            values.get("model_type") == "siglip2"
        )
        raise UserError(f"{path}: model_type is {values.get('model_type')!r}, expected 'siglip'{naflex}.")
    vision, text = (json_field(values, name, dict, path, {}) for name in ("vision_config", "text_config"))
    if not vision.get("vision_use_head", True):
        raise UserError(f"{path}: vision_config.vision_use_head is false, expected a tower with attention pooling.")
    defaults = {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
    configure_vision(config.image_tower, {**defaults, **vision}, path, "attention")
    size = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    text = {**size, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "max_position_embeddings": 64, **text}
    if text["hidden_act"] not in list(ACTIVATIONS):  # it may be anything
        raise UserError(
            f"{path}: text_config.hidden_act is {text['hidden_act']!r}, expected one of {', '.join(ACTIVATIONS)}."
        )
    hidden = json_field(text, "hidden_size", int, path)
    config.embedding_size = json_field(text, "projection_size", int, path, hidden)
    config.text_tower.update(
        dict(
            layers=json_field(text, "num_hidden_layers", int, path),
            hidden_size=hidden,
            heads=json_field(text, "num_attention_heads", int, path),
            feed_forward_size=json_field(text, "intermediate_size", int, path),
            activation=ACTIVATIONS[text["hidden_act"]],
            epsilon=float(json_field(text, "layer_norm_eps", float, path)),
            max_length=json_field(text, "max_position_embeddings", int, path),
        )
    )


def _configure_big_vision(weights: WeightFile, config: ConfigDict) -> None:
    """All sizes are the arrays' sizes; patches, activation and epsilon are SigLIP's."""
    shapes = weights.shapes

    def tower(part: str, encoder: str) -> dict:
        names = [name for name in shapes if name.startswith(f"params/{part}/{encoder}/encoderblock")]
        queries = [name for name in names if name.endswith("_0/query/kernel")]
        wide = [name for name in names if name.endswith("Dense_0/kernel")]
        if not queries or not wide:
            raise UserError(f"{weights.path} has no {encoder} in params/{part}: expected big_vision's SigLIP.")
        stacked = len(shapes[queries[0]]) == 4
        hidden, heads, _ = shapes[queries[0]][-3:]
        layers = shapes[queries[0]][0] if stacked else len(queries)
        return dict(
            layers=layers,
            hidden_size=hidden,
            heads=heads,
            feed_forward_size=shapes[wide[0]][-1],
            activation="gelu_tanh",
            epsilon=1e-6,
        )

    patches, positions = shapes.get("params/img/embedding/kernel", ()), shapes.get("params/img/pos_embedding", ())
    texts = shapes.get("params/txt/pos_embedding", ())
    if len(patches) != 4 or len(positions) != 3 or len(texts) < 2:
        raise UserError(
            f"{weights.path}: params/img/embedding/kernel is {list(patches)}, params/img/pos_embedding "
            f"{list(positions)}, params/txt/pos_embedding {list(texts)}: expected big_vision's SigLIP of fixed "
            "resolution (NaFlex is another tower)."
        )
    side = round(positions[1] ** 0.5) * patches[0]
    config.image_tower.update(
        dict(
            **tower("img", "Transformer"), name="vit", patch_size=patches[0], pooling="attention", projection=0,
            image_size=side,
        )
    )  # fmt: skip
    config.text_tower.update(dict(**tower("txt", "Encoder_0"), max_length=texts[-2]))
    config.embedding_size = shapes.get(f"{HEAD}/kernel", (0, config.text_tower.hidden_size))[1]


def read_vocabulary(weights: str | pathlib.Path, config: ConfigDict, as_trained: bool = False) -> list[str]:
    """Returns the lines of the tower's SentencePiece vocabulary, and sets `config.vocabulary` to how it is used."""
    path = folder_of_two_towers(pathlib.Path(weights))
    file = open_weights(path)
    tokens = "text_model.embeddings.token_embedding.weight" if path.is_dir() else "params/txt/Embed_0/embedding"
    rows = file.shapes.get(open_clip_siglip.TOKENS if _is_open_clip(path) else tokens, (0,))[0]
    if path.is_dir():
        check_settings(path, "siglip")
        source = vocabularies.find_sentence_pieces(path)
    elif config.vocabulary.file:
        source = config.vocabulary.file
    else:
        raise UserError(
            f"{path} holds no vocabulary: give the SentencePiece model or tokenizer.json of its training with "
            "--vocabulary=FILE."
        )
    lines, model = vocabularies.read_sentence_pieces(source, rows)
    layout = LAYOUTS[model]
    cleaning = open_clip_siglip.cleaning(path) if _is_open_clip(path) else HUGGING_FACE_CLEANING[layout]
    cleaning = ("lower_ascii",) if as_trained else cleaning
    vocabularies.use_sentence_pieces(config, lines, layout, cleaning)
    return lines


def load_weights(weights: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for `configure`'s settings; nothing is changed unless all of it fits."""
    path = folder_of_two_towers(pathlib.Path(weights))
    file = open_weights(path)
    if _is_open_clip(path):
        table = {**open_clip_siglip.table(config, file), **NUMBERS}
    else:
        table = hugging_face_table(config) if path.is_dir() else big_vision_table(config, file)
    assign_parts(table, model, parts, file, r".*position_ids", "a SigLIP")
