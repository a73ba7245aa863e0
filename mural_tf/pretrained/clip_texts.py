"""CLIP's own text tower (Radford et al., 2021), which knows English: Hugging Face's `CLIPModel`, or open_clip's names.

A causal transformer on byte pairs; a matrix takes the state of a text's last token to the pictures' space. So a CLIP is
a whole model, and a teacher of any other text tower. Texts are cleaned as Hugging Face's tokenizer does it, or as
open_clip but for `ftfy` and HTML's entities; `<|endoftext|>` within a text is letters.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping

from ml_collections import ConfigDict

from mural_lite.errors import UserError
from mural_lite.files import as_path, check_json, json_field, read_json
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained import clip, open_clip_siglip
from mural_tf.pretrained.folders import OPEN_CLIP_WEIGHTS, folder_of_two_towers, open_clip_settings
from mural_tf.pretrained.importer import TEXT, TWO_TOWERS, Importer
from mural_tf.pretrained.keys import FREE, check_keys, object_or_empty
from mural_tf.pretrained.tables import Row, as_is, assign_parts, first_rows, kernel_without_bias, no_types, norm_rows
from mural_tf.pretrained.temperature import scale_row
from mural_tf.pretrained.tokenizer_files import (
    TOKENIZER,
    check_settings,
    check_template,
    read_tokenizer,
    warn_of_added_tokens,
)
from mural_tf.pretrained.vocabularies import fit_rows, use_sentence_pieces
from mural_tf.pretrained.weight_files import WeightFile
from mural_tf.text.byte_words import END_OF_WORD, with_end_mark
from mural_tf.text.piece_models import byte_pair_lines, steps_of

BEGIN = "<|startoftext|>"
END = "<|endoftext|>"
PIECES = "vocab.json"
MERGES = "merges.txt"
CLEANING = ("composed", "single_spaces", "lower_characters", "clip_words")  # Hugging Face's
TOKENS = "text_model.embeddings.token_embedding.weight"
POSITIONS = "text_model.embeddings.position_embedding.weight"
# Keys of open_clip's own text tower that are not read below, and their values, which are also the defaults.
OPEN_CLIP_KEYS = {
    **open_clip_siglip.TEXT_KEYS,
    **dict.fromkeys(("no_causal_mask", "proj_bias"), (False,)),
    **dict.fromkeys(("act_kwargs", "norm_kwargs"), ({},)),
    "pool_type": ("argmax",),
    "proj_type": ("linear",),
    "hf_tokenizer_name": (),
}
# Keys of tokenizer.json's model, and the values that are supported.
MODEL_KEYS = {
    "type": ("BPE",),
    "dropout": (),
    "unk_token": (END,),
    "continuing_subword_prefix": ("",),
    "end_of_word_suffix": (END_OF_WORD,),
    **dict.fromkeys(("byte_fallback", "ignore_merges"), (False,)),
}
STEPS = {  # of tokenizer.json: how a text becomes words
    "normalizer": ["NFC", "Replace", "Lowercase"],
    "pre_tokenizer": ["Split", "ByteLevel"],
}


def read_vocabulary(weights: str | pathlib.Path, config: ConfigDict) -> list[str]:
    """Returns the lines of a CLIP's vocabulary by id, and sets the text tower and the vocabulary's use in `config`.

    `weights` is a folder. Raises `UserError` for a text tower of another kind, or a folder without its vocabulary.
    """
    folder = folder_of_two_towers(weights)
    file = clip.open_weights(folder)
    if _is_open_clip(file):
        cleaning = _configure_open_clip(folder, config.text_tower)
        token_table = f"{_prefix(file)}token_embedding.weight"
    else:
        cleaning = _configure_hugging_face(folder, config.text_tower)
        token_table = TOKENS
    config.text_tower.update(
        name="bert",
        norm="before",
        attention="causal",
        pooling="end",
        token_embedding_size=0,
        pooler_size=0,
        head_hidden_size=0,
    )
    row_count, *_ = file.shapes.get(token_table, (0,))  # 0: `load_weights` says that it is missing
    lines = fit_rows(_read_lines(folder), row_count, folder)
    use_sentence_pieces(config, lines, "clip", cleaning)
    return lines


def _configure_hugging_face(folder: pathlib.Path, tower: ConfigDict) -> tuple[str, ...]:
    """Sets `tower`, the text tower, by a folder's config.json; returns the steps of `config.vocabulary.cleaning`."""
    path = folder / "config.json"
    # Hugging Face's values by default.
    values = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8)
    values |= dict(max_position_embeddings=77, hidden_act="quick_gelu", layer_norm_eps=1e-5)
    values |= json_field(read_json(path), "text_config", dict, path, {})
    clip.configure_transformer(tower, values, path, "text_config")
    tower.max_length = json_field(values, "max_position_embeddings", int, path)
    return CLEANING


def _configure_open_clip(folder: pathlib.Path, tower: ConfigDict) -> tuple[str, ...]:
    """Sets `tower`, the text tower, by open_clip's folder; returns the steps of `config.vocabulary.cleaning`.

    Raises `UserError` for settings that are not supported.
    """
    model, path = open_clip_settings(folder)
    text = json_field(model, "text_cfg", dict, path, {})
    check_keys(text, OPEN_CLIP_KEYS, path, refuses_unknown=False)
    options = object_or_empty(text, "tokenizer_kwargs", path)
    check_keys(options, {"clean": ("lower", "canonicalize"), "context_length": FREE}, path)
    width = json_field(text, "width", int, path, 512)
    layers = json_field(text, "layers", int, path, 12)
    heads = json_field(text, "heads", int, path, 8)
    ratio = json_field(text, "mlp_ratio", float, path, 4.0)
    tower.update(
        layers=layers,
        hidden_size=width,
        heads=heads,
        feed_forward_size=int(width * float(ratio)),
        activation="quick_gelu" if model.get("quick_gelu") else "gelu",
        epsilon=1e-5,
        max_length=json_field(text, "context_length", int, path, 77),
    )
    return (*open_clip_siglip.CLEANING[options.get("clean") or "lower"], "clip_words")


# The vocabulary.


def _read_lines(folder: pathlib.Path) -> list[str]:
    """Returns the lines of a folder's vocabulary, as `piece_models.parse_lines` takes them.

    Logs a warning for added tokens without a line. Raises `UserError` if the folder has no vocabulary of a CLIP.
    """
    check_settings(folder, "clip")
    tokenizer = read_tokenizer(folder)
    path = folder / TOKENIZER
    if tokenizer:
        _check_steps(tokenizer, path)
        check_template(tokenizer, BEGIN, END, path)
        model = json_field(tokenizer, "model", dict, path)
        check_keys({"type": "BPE", **model}, MODEL_KEYS | {"vocab": FREE, "merges": FREE, "fuse_unk": FREE}, path)
        ids = json_field(model, "vocab", dict[str, int], path)
        merges = json_field(model, "merges", list, path)
    elif (folder / PIECES).is_file() and (folder / MERGES).is_file():
        path = folder / PIECES
        ids = check_json(read_json(path), dict[str, int], PIECES, path)
        merges = _read_merges(folder / MERGES)
    else:
        raise UserError(
            f"{folder} has no vocabulary of CLIP's texts: expected {TOKENIZER}, or {PIECES} with {MERGES}, as the "
            "model's tokenizer is saved; or take another text tower, with --text=FOLDER of python -m mural_tf import."
        )
    types = {BEGIN: "control", END: "unknown"}
    missing = [name for name in types if name not in ids]
    if missing:
        raise UserError(f"{path} has no piece {' or '.join(missing)}: it is not the vocabulary of a CLIP.")
    lines = byte_pair_lines(ids, merges, types, with_end_mark, path)
    warn_of_added_tokens(folder, list(ids))
    return lines


def _read_merges(path: pathlib.Path) -> list[str]:
    """Returns the merged pairs in a file merges.txt, "a b" each, without its line of a version."""
    try:
        text = as_path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}.") from None
    lines = text.replace("\r", "").split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def _check_steps(tokenizer: Mapping, path: pathlib.Path) -> None:
    """Raises `UserError` unless a tokenizer.json, the content of `path`, has CLIP's `STEPS` from texts to words."""
    for part, expected in STEPS.items():
        types = [step.get("type") for step in steps_of(tokenizer, part)]
        if types != expected:
            raise UserError(
                f"{path}: its {part} is {' and '.join(map(str, types)) or 'none'}, and only {' and '.join(expected)} "
                "is supported, as in CLIP."
            )


# The weights.


def load_weights(folder: str | pathlib.Path, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills `parts` of a model built for the settings of `clip.configure` and, for texts, of `read_vocabulary`.

    Raises `UserError`, and changes nothing, unless all names and shapes fit.
    """
    weights = clip.open_weights(folder)
    has_texts = not set(TEXT).isdisjoint(parts)  # else another text tower fills them, and the file's is ignored
    if _is_open_clip(weights):
        image_rows = clip.open_clip_table(config.image_tower)
        ignored = r"logit_bias|.*attn_mask" if has_texts else r"(?!visual\.|logit_scale).*"
    else:
        image_rows = clip.hugging_face_table(config.image_tower)
        ignored = r".*position_ids" if has_texts else r".*position_ids|text_model\..*|text_projection\..*"
    tables = {"image_encoder": image_rows, "log_temperature": [scale_row()]}
    if has_texts and _is_open_clip(weights):
        tables |= _open_clip_tables(config, _prefix(weights))
    elif has_texts:
        tables |= _hugging_face_tables(config)
    assign_parts(tables, model, parts, weights, ignored, "a CLIP")


def _hugging_face_tables(config: ConfigDict) -> dict[str, list[Row]]:
    """Returns {part of a model: its rows} for the text tower and its head, by the names in `CLIPModel`."""
    text_rows = [
        *_embedding_rows(TOKENS, POSITIONS, config),
        *clip.layer_rows("layer", "text_model.encoder.layers", config.text_tower.layers),
        *norm_rows("final_norm", "text_model.final_layer_norm"),
    ]
    head_rows = kernel_without_bias("image_text_head", "text_projection.weight", config.embedding_size)
    return {"text_encoder": text_rows, "image_text_head": head_rows}


def _open_clip_tables(config: ConfigDict, prefix: str) -> dict[str, list[Row]]:
    """Returns {part of a model: its rows} for the text tower and its head, by open_clip's names behind a prefix."""
    text_rows = [
        *_embedding_rows(f"{prefix}token_embedding.weight", f"{prefix}positional_embedding", config),
        *clip.open_clip_layers("layer", f"{prefix}transformer.resblocks", config.text_tower.layers),
        *norm_rows("final_norm", f"{prefix}ln_final"),
    ]
    head_rows = kernel_without_bias("image_text_head", f"{prefix}text_projection", config.embedding_size, as_is)
    return {"text_encoder": text_rows, "image_text_head": head_rows}


def _embedding_rows(tokens: str, positions: str, config: ConfigDict) -> list[Row]:
    """Returns the rows of the text tower's embeddings by the file's names of two tables; token types are zeros."""
    return [
        Row("embeddings/token_embeddings", (tokens,)),
        Row("embeddings/position_embeddings", (positions,), first_rows(config.text_tower.max_length)),
        Row("embeddings/type_embeddings", (positions,), no_types),
    ]


def _is_open_clip(weights: WeightFile) -> bool:
    """Whether weights are from open_clip's folder, by the file's name."""
    return weights.path.name == OPEN_CLIP_WEIGHTS


def _prefix(weights: WeightFile) -> str:
    """Returns how the text tower's names begin in open_clip's file: "text.", or "" where both towers are one class."""
    return "text." if "text.token_embedding.weight" in weights.shapes else ""


IMPORTER = Importer(
    TWO_TOWERS, clip.configure, load_weights, read_vocabulary, method="align", open_weights=clip.open_weights
)
