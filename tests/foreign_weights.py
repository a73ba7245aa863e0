"""Small files of weights as other projects write them, made with NumPy alone: the same values at every call.

A tensor's values follow from its name and shape, so that Hugging Face's models can be given the very same ones.
"""

import json
import zlib

import numpy as np

WORDS = ("red", "green", "balloon", "##s", "cat", "photo", "of", "the", "on", ".", ",", "Paris")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
PIECES = list(dict.fromkeys(PIECES))
TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
    "vocab_size": len(PIECES),
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
# Stages of one block each; stems and stages of 16, 8, 16, 24, 40, 56, 96 and 160 channels.
VISION = {"image_size": 33, "width_coefficient": 0.5, "depth_coefficient": 0.25, "hidden_dim": 160}
WIDTHS = (16, 8, 16, 24, 40, 56, 96, 160)
KERNELS = (3, 3, 5, 3, 5, 5, 3)


def value(name: str, shape) -> np.ndarray:
    """Random weights with which depth neither kills nor explodes, and every statistic matters."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    normal = random.normal(size=shape)
    if not shape:
        return np.float32(0.037 if name == "temperature" else 2.5)
    if name.endswith("running_var"):
        values = random.uniform(0.5, 1.5, shape)
    elif name.endswith("running_mean"):
        values = 0.1 * normal
    elif len(shape) == 1:
        values = 1.0 + 0.2 * normal if name.endswith(("weight", "gamma")) else 0.1 * normal
    elif "embeddings" in name and len(shape) == 2:
        values = 0.5 * normal
    elif len(shape) == 4:
        values = normal * np.sqrt(3.0 / np.prod(shape[1:]))
    else:
        values = normal / np.sqrt(shape[-1])
    return values.astype(np.float32)


def bert_shapes(prefix: str = "", layers: int = TEXT["num_hidden_layers"]) -> dict[str, tuple]:
    """`BertModel`'s names and shapes."""
    hidden, wide = TEXT["hidden_size"], TEXT["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (TEXT["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (TEXT["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
        "pooler.dense.weight": (hidden, hidden),
        "pooler.dense.bias": (hidden,),
    }
    for i in range(layers):
        dense = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        dense["attention.output.dense"] = (hidden, hidden)
        dense.update({"intermediate.dense": (wide, hidden), "output.dense": (hidden, wide)})
        for name, shape in dense.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = shape
            shapes[f"encoder.layer.{i}.{name}.bias"] = shape[:1]
        for name in ("attention.output", "output"):
            for end in ("weight", "bias"):
                shapes[f"encoder.layer.{i}.{name}.LayerNorm.{end}"] = (hidden,)
    return {prefix + name: shape for name, shape in shapes.items()}


def vision_shapes(prefix: str = "vision_model.") -> dict[str, tuple]:
    """`AlignVisionModel`'s names and shapes."""
    shapes = {"embeddings.convolution.weight": (16, 3, 3, 3)}
    norms = {"embeddings.batchnorm": 16}
    for i, (width, out, kernel) in enumerate(zip(WIDTHS, WIDTHS[1:], KERNELS)):
        block, wide, squeezed = f"encoder.blocks.{i}.", width * (6 if i else 1), width // 4
        if i:
            shapes[f"{block}expansion.expand_conv.weight"] = (wide, width, 1, 1)
            norms[f"{block}expansion.expand_bn"] = wide
        shapes[f"{block}depthwise_conv.depthwise_conv.weight"] = (wide, 1, kernel, kernel)
        norms[f"{block}depthwise_conv.depthwise_norm"] = wide
        shapes[f"{block}squeeze_excite.reduce.weight"] = (squeezed, wide, 1, 1)
        shapes[f"{block}squeeze_excite.reduce.bias"] = (squeezed,)
        shapes[f"{block}squeeze_excite.expand.weight"] = (wide, squeezed, 1, 1)
        shapes[f"{block}squeeze_excite.expand.bias"] = (wide,)
        shapes[f"{block}projection.project_conv.weight"] = (out, wide, 1, 1)
        norms[f"{block}projection.project_bn"] = out
    for name, width in norms.items():
        for end in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{end}"] = (width,)
        shapes[f"{name}.num_batches_tracked"] = ()
    return {prefix + name: shape for name, shape in shapes.items()}


def align_shapes() -> dict[str, tuple]:
    """`AlignModel`'s names and shapes."""
    projection = {"text_projection.weight": (160, TEXT["hidden_size"]), "text_projection.bias": (160,)}
    return {**vision_shapes(), **bert_shapes("text_model."), **projection, "temperature": ()}


def write_safetensors(folder, shapes, file="model.safetensors", change=lambda tensors: None):
    """Writes tensors of these names and shapes; `change` may spoil them."""
    from safetensors.numpy import save_file

    tensors = {
        name: np.ones((), np.int64) if name.endswith("num_batches_tracked") else value(name, shape)
        for name, shape in shapes.items()
    }
    tensors = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
    change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / file), metadata={"format": "pt"})
    return folder


def write_bfloat16(path, tensors):
    """Writes safetensors in bfloat16, the upper half of float32: a header's length, the header in JSON, the data."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        upper = (tensor.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        offsets = [len(data), len(data) + len(upper)]
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}
        data += upper
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def write_keras_h5(path, values):
    """Writes {"layer/variable:0": array} as Keras' `save_weights` does: a group a layer, names in attributes."""
    import h5py

    layers = {}
    for name, array in values.items():
        layers.setdefault(name.split("/")[0], {})[name] = array
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = list(layers)
        for layer, arrays in layers.items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = list(arrays)
            for name, array in arrays.items():
                group[name] = array
    return path


def write_json(path, **values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def write_vocabulary(folder, lower_case: bool):
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", do_lower_case=lower_case, model_max_length=64)


def write_align(folder, change=lambda tensors: None):
    """A folder as Hugging Face's `AlignModel` and `AlignProcessor` are saved, small."""
    write_safetensors(folder, align_shapes(), change=change)
    write_json(
        folder / "config.json",
        model_type="align",
        projection_dim=160,
        text_config={"model_type": "align_text_model", **TEXT},
        vision_config={"model_type": "align_vision_model", **VISION},
    )
    write_json(
        folder / "preprocessor_config.json",
        do_center_crop=True,
        crop_size={"height": 33, "width": 33},
        size={"height": 40, "width": 40},
        resample=2,  # bilinear
        do_normalize=False,
        include_top=False,
        rescale_factor=1 / 127.5,
        rescale_offset=True,
    )
    write_vocabulary(folder, lower_case=True)
    return folder


def write_bert(folder, change=lambda tensors: None):
    """A folder as Hugging Face's `BertModel` is saved, small and cased."""
    write_safetensors(folder, bert_shapes(), change=change)
    write_json(folder / "config.json", model_type="bert", **TEXT)
    write_vocabulary(folder, lower_case=False)
    return folder


DISTILBERT_NAMES = {
    "encoder.layer": "transformer.layer",
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}


def distilbert_shapes() -> dict[str, tuple]:
    """`DistilBertModel`'s names and shapes."""
    shapes = {}
    for name, shape in bert_shapes().items():
        for bert, distilbert in DISTILBERT_NAMES.items():
            name = name.replace(bert, distilbert)
        if "token_type" not in name and "pooler" not in name:
            shapes[name] = shape
    return shapes


def write_sentences(folder, kind="distilbert", pooling="mean", dense=(("Identity", 20, False),)):
    """A folder of Sentence-Transformers; `dense` has each Dense layer's activation, size and whether it has a bias."""
    if kind == "distilbert":
        write_safetensors(folder, distilbert_shapes())
        sizes = {"n_layers": 2, "dim": 32, "n_heads": 4, "hidden_dim": 64, "activation": "gelu"}
        write_json(
            folder / "config.json",
            model_type=kind,
            **sizes,
            max_position_embeddings=96,
            vocab_size=len(PIECES),
            sinusoidal_pos_embds=False,
        )
        write_vocabulary(folder, lower_case=False)
    else:
        write_bert(folder)
    write_json(folder / "sentence_bert_config.json", max_seq_length=16, do_lower_case=False)
    write_json(
        folder / "1_Pooling" / "config.json",
        word_embedding_dimension=32,
        pooling_mode_cls_token=pooling == "cls",
        pooling_mode_mean_tokens=pooling == "mean",
        pooling_mode_max_tokens=pooling == "max",
    )
    modules, width = [("", "Transformer"), ("1_Pooling", "Pooling")], TEXT["hidden_size"]
    for number, (activation, size, bias) in enumerate(dense, start=2):
        place = f"{number}_Dense"
        shapes = {"linear.weight": (size, width), **({"linear.bias": (size,)} if bias else {})}
        write_safetensors(folder / place, shapes)
        module = (
            "torch.nn.modules.linear.Identity"
            if activation == "Identity"
            else f"torch.nn.modules.activation.{activation}"
        )
        write_json(
            folder / place / "config.json", in_features=width, out_features=size, bias=bias, activation_function=module
        )
        modules.append((place, "Dense"))
        width = size
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    return folder


def random_images(count: int, side: int) -> np.ndarray:
    """uint8 [count, side, side, 3], blocks of colour."""
    blocks = np.random.default_rng(7).integers(0, 256, (count, side // 8 + 1, side // 8 + 1, 3), dtype=np.uint8)
    return blocks.repeat(8, axis=1).repeat(8, axis=2)[:, :side, :side]


def random_tokens(size: int, lengths=(12, 7, 3, 1)) -> dict[str, np.ndarray]:
    """int32 [B, T]: ids after [CLS], padding at the end."""
    mask = np.array([[int(i < length) for i in range(max(lengths))] for length in lengths], np.int32)
    ids = np.random.default_rng(8).integers(5, size, mask.shape).astype(np.int32) * mask
    ids[:, 0] = 2
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}
