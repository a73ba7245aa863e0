"""Small checkpoints of CLIP, SigLIP and XLM-RoBERTa as other projects save them, made with NumPy alone."""

import foreign_weights as foreign
import numpy as np
from test_sentence_pieces import BPE, BPE_SETTINGS, SETTINGS, lines_of

from mural_tf.text.byte_words import byte_characters
from mural_tf.text.piece_models import model_of, parse_lines

WIDTH, WIDE, LAYERS, HEADS, LENGTH = 32, 64, 2, 4, 8
SIDE, PATCH = 37, 8  # five pixels are left over
WORDS = ("red", "green", "balloon", "s", "cat", "photo", "of", "the", "on", "Paris")
CONTROLS = [["<pad>", 0.0, "control"], ["</s>", 0.0, "control"], ["<unk>", 0.0, "unknown"]]
UNIGRAM = [*CONTROLS, *[[letter, -9.0, "normal"] for letter in "▁" + foreign.LETTERS]]
UNIGRAM += [[f"▁{word}", -3.0 - i / 8, "normal"] for i, word in enumerate(WORDS) if len(word) > 1]
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}


def layer_shapes(prefix):
    """A layer's names and shapes in Hugging Face's `CLIPEncoder`, all layers."""
    shapes = {}
    for i in range(LAYERS):
        dense = {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
        dense |= {"mlp.fc1": (WIDE, WIDTH), "mlp.fc2": (WIDTH, WIDE)}
        for name, shape in dense.items():
            shapes |= {f"{prefix}.{i}.{name}.weight": shape, f"{prefix}.{i}.{name}.bias": shape[:1]}
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= norm_shapes(f"{prefix}.{i}.{name}")
    return shapes


def norm_shapes(name):
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def vision_shapes(extra=0):
    """What CLIP's and SigLIP's image towers share."""
    return {
        "vision_model.embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        "vision_model.embeddings.position_embedding.weight": ((SIDE // PATCH) ** 2 + extra, WIDTH),
        **layer_shapes("vision_model.encoder.layers"),
        **norm_shapes("vision_model.post_layernorm"),
    }


def siglip_shapes(rows, projection=WIDTH):
    """`SiglipModel`'s names and shapes."""
    head = "vision_model.head"
    return {
        **vision_shapes(),
        "vision_model.embeddings.patch_embedding.bias": (WIDTH,),
        f"{head}.probe": (1, 1, WIDTH),
        f"{head}.attention.in_proj_weight": (3 * WIDTH, WIDTH),
        f"{head}.attention.in_proj_bias": (3 * WIDTH,),
        f"{head}.attention.out_proj.weight": (WIDTH, WIDTH),
        f"{head}.attention.out_proj.bias": (WIDTH,),
        **norm_shapes(f"{head}.layernorm"),
        f"{head}.mlp.fc1.weight": (WIDE, WIDTH),
        f"{head}.mlp.fc1.bias": (WIDE,),
        f"{head}.mlp.fc2.weight": (WIDTH, WIDE),
        f"{head}.mlp.fc2.bias": (WIDTH,),
        "text_model.embeddings.token_embedding.weight": (rows, WIDTH),
        "text_model.embeddings.position_embedding.weight": (LENGTH, WIDTH),
        **layer_shapes("text_model.encoder.layers"),
        **norm_shapes("text_model.final_layer_norm"),
        "text_model.head.weight": (projection, WIDTH),
        "text_model.head.bias": (projection,),
        "logit_scale": (1,),
        "logit_bias": (1,),
    }


def clip_shapes(projection=20):
    """`CLIPModel`'s names and shapes."""
    return {
        **vision_shapes(extra=1),
        "vision_model.embeddings.class_embedding": (WIDTH,),
        **norm_shapes("vision_model.pre_layrnorm"),
        "visual_projection.weight": (projection, WIDTH),
        "text_model.embeddings.token_embedding.weight": (len(clip_pieces()[0]) + 1, WIDTH),
        "text_model.embeddings.position_embedding.weight": (12, WIDTH),
        **layer_shapes("text_model.encoder.layers"),
        **norm_shapes("text_model.final_layer_norm"),
        "text_projection.weight": (projection, WIDTH),
        "logit_scale": (),
    }


def clip_pieces():
    """{piece: id} and the merges of a small vocabulary as CLIP's is: bytes, bytes that end a word, what is merged."""
    merges = ["r e", "e d</w>", "re d</w>", "b a", "l l", "ba ll", "o o", "oo n</w>", "ball oon</w>", "' s</w>"]
    merges += ["t h", "th e</w>", "o n</w>", "Ã ©</w>", "c a", "! !</w>"]
    letters = byte_characters()
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *(merge.replace(" ", "") for merge in merges)]
    pieces += ["<|startoftext|>", "<|endoftext|>"]
    return {piece: number for number, piece in enumerate(pieces)}, merges


def write_clip_pieces(folder):
    """As `CLIPTokenizer` was saved before transformers 5."""
    ids, merges = clip_pieces()
    foreign.write_json(folder / "vocab.json", **ids)
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")


def xlm_roberta_shapes(rows, prefix=""):
    """`XLMRobertaModel`'s names and shapes: as BERT's, one token type."""
    shapes = {name: shape for name, shape in foreign.bert_shapes().items() if not name.startswith("pooler")}
    shapes["embeddings.token_type_embeddings.weight"] = (1, WIDTH)
    shapes["embeddings.word_embeddings.weight"] = (rows, WIDTH)
    return {prefix + name: shape for name, shape in shapes.items()}


def open_clip_shapes(rows, projection=20):
    """open_clip's names and shapes of a ViT and an XLM-RoBERTa with an MLP on top."""
    between = (WIDTH + projection) // 2
    shapes = {
        "visual.conv1.weight": (WIDTH, 3, PATCH, PATCH),
        "visual.class_embedding": (WIDTH,),
        "visual.positional_embedding": ((SIDE // PATCH) ** 2 + 1, WIDTH),
        "visual.proj": (WIDTH, projection),
        **norm_shapes("visual.ln_pre"),
        **norm_shapes("visual.ln_post"),
        "text.proj.0.weight": (between, WIDTH),
        "text.proj.2.weight": (projection, between),
        "logit_scale": (),
        **xlm_roberta_shapes(rows, "text.transformer."),
    }
    for i in range(LAYERS):
        block = f"visual.transformer.resblocks.{i}"
        shapes |= {f"{block}.attn.in_proj_weight": (3 * WIDTH, WIDTH), f"{block}.attn.in_proj_bias": (3 * WIDTH,)}
        dense = {"attn.out_proj": (WIDTH, WIDTH), "mlp.c_fc": (WIDE, WIDTH), "mlp.c_proj": (WIDTH, WIDE)}
        for name, shape in dense.items():
            shapes |= {f"{block}.{name}.weight": shape, f"{block}.{name}.bias": shape[:1]}
        shapes |= {**norm_shapes(f"{block}.ln_1"), **norm_shapes(f"{block}.ln_2")}
    return shapes


def scale(tensors):
    """Scales that a model could have learned."""
    for name, number in (("logit_scale", 2.5), ("logit_bias", -7.0)):
        if name in tensors:
            tensors[name] = np.full_like(tensors[name], number)


def scaled(change):
    """What gives tensors such scales, and changes them."""

    def call(tensors):
        scale(tensors)
        change(tensors)

    return call


def write_pieces(path, pieces=UNIGRAM, settings=SETTINGS):
    """A SentencePiece model file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model_of(*parse_lines(lines_of(pieces, settings), path)))
    return path


def write_siglip(folder, second=False, change=lambda tensors: None, **values):
    """A folder as Hugging Face's `SiglipModel` and `SiglipProcessor` are saved; `second`: as SigLIP 2's.

    `values` stand in config.json in place of its own.
    """
    pieces = BPE if second else UNIGRAM

    foreign.write_safetensors(folder, siglip_shapes(len(pieces)), change=scaled(change))
    vision = dict(model_type="siglip_vision_model", image_size=SIDE, patch_size=PATCH, **SIZES)
    text = dict(model_type="siglip_text_model", vocab_size=len(pieces), max_position_embeddings=LENGTH, **SIZES)
    settings = dict(model_type="siglip", vision_config=vision, text_config={**text, "projection_size": WIDTH})
    foreign.write_json(folder / "config.json", **{**settings, **values})
    write_pieces(
        folder / ("tokenizer.model" if second else "spiece.model"), pieces, BPE_SETTINGS if second else SETTINGS
    )
    write_preprocessor(folder, resample=2 if second else 3)
    return folder


NAFLEX = dict(patches=20, grid=4)  # patches of a picture at most, and rows and columns of learned positions


def write_naflex(folder, change=lambda tensors: None, model_type="siglip2", **values):
    """A folder as Hugging Face's `Siglip2Model` and `Siglip2Processor` are saved; `fgclip2`: as FG-CLIP 2's.

    `values` stand in config.json in place of its own.
    """
    shapes = siglip_shapes(len(BPE))
    shapes["vision_model.embeddings.patch_embedding.weight"] = (WIDTH, 3 * PATCH**2)
    shapes["vision_model.embeddings.position_embedding.weight"] = (NAFLEX["grid"] ** 2, WIDTH)
    if model_type == "fgclip2":
        for name in ("longtext_head", "boxtext_head"):
            shapes |= {f"{name}.weight": (WIDTH, WIDTH), f"{name}.bias": (WIDTH,)}
        for name in ("res", "ori"):
            shapes[f"text_model.embeddings.position_embedding_{name}.weight"] = (3 * LENGTH, WIDTH)
        shapes["dense_feature_head.probe"] = (1, 1, WIDTH)

    foreign.write_safetensors(folder, shapes, change=scaled(change))
    vision = dict(model_type="siglip2_vision_model", num_patches=NAFLEX["grid"] ** 2, patch_size=PATCH, **SIZES)
    ids = dict(bos_token_id=2, eos_token_id=1, pad_token_id=0)
    text = dict(model_type="siglip2_text_model", vocab_size=len(BPE), max_position_embeddings=LENGTH, **ids, **SIZES)
    settings = dict(model_type=model_type, text_config={**text, "projection_size": WIDTH}, vision_config=vision)
    foreign.write_json(folder / "config.json", **{**settings, **values})
    write_gemma_pieces(folder, begin="")
    half = [0.5] * 3
    pixels = dict(do_resize=True, resample=2, image_mean=half, image_std=half, rescale_factor=1 / 255)
    pixels |= dict(image_processor_type="Siglip2ImageProcessor", max_num_patches=NAFLEX["patches"], patch_size=PATCH)
    foreign.write_json(folder / "preprocessor_config.json", **pixels)
    return folder


def write_preprocessor(folder, **values):
    square = {"height": SIDE, "width": SIDE}
    foreign.write_json(
        folder / "preprocessor_config.json",
        **{"size": square, "do_center_crop": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, **values},
    )


def write_clip(folder, change=lambda tensors: None, projection=20, **values):
    """A folder as Hugging Face's `CLIPModel` and `CLIPProcessor` are saved."""
    foreign.write_safetensors(folder, clip_shapes(projection), change=scaled(change))
    vision = dict(model_type="clip_vision_model", image_size=SIDE, patch_size=PATCH, **SIZES)
    text = dict(model_type="clip_text_model", vocab_size=531, max_position_embeddings=12, eos_token_id=529, **SIZES)
    settings = dict(model_type="clip", vision_config=vision, text_config=text, projection_dim=projection)
    foreign.write_json(folder / "config.json", **{**settings, **values})
    mean, deviation = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    write_preprocessor(
        folder,
        size={"shortest_edge": SIDE},
        do_center_crop=True,
        crop_size={"height": SIDE, "width": SIDE},
        resample=3,
        image_mean=mean,
        image_std=deviation,
    )
    write_clip_pieces(folder)
    return folder


def write_open_clip(folder, **text):
    """A folder of LAION's, as open_clip saves it."""
    foreign.write_safetensors(folder, open_clip_shapes(len(UNIGRAM) + 2), "open_clip_model.safetensors", scale)
    vision = dict(image_size=SIDE, layers=LAYERS, width=WIDTH, patch_size=PATCH, head_width=WIDTH // HEADS, mlp_ratio=2)
    text = {"hf_model_name": "xlm-roberta-base", "hf_pooler_type": "mean_pooler", "context_length": 12, **text}
    model = {"embed_dim": 20, "vision_cfg": vision, "text_cfg": text}
    foreign.write_json(folder / "open_clip_config.json", model_cfg=model, preprocess_cfg={"mean": None, "std": None})
    write_pieces(folder / "sentencepiece.bpe.model", _with_unknown_first())
    return folder


def write_xlm_roberta(folder):
    """A folder as Hugging Face's `XLMRobertaModel` is saved."""
    rows = len(UNIGRAM) + 2  # <s> and <mask>
    foreign.write_safetensors(folder, xlm_roberta_shapes(rows))
    sizes = {**foreign.TEXT, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "vocab_size": rows}
    foreign.write_json(folder / "config.json", model_type="xlm-roberta", pad_token_id=1, **sizes)
    write_pieces(folder / "sentencepiece.bpe.model", _with_unknown_first())
    return folder


def _with_unknown_first():
    """As XLM-RoBERTa's own file: <unk>, <s>, </s>, the pieces; fairseq's ids are two more."""
    own = [["<unk>", 0.0, "unknown"], ["<s>", 0.0, "control"], ["</s>", 0.0, "control"]]
    return [*own, *UNIGRAM[3:]]


GATED = 40  # width of a ModernBERT's second halves


def modernbert_shapes(rows, layers=5):
    """`ModernBertModel`'s names and shapes; the first layer has no norm before its attention."""
    shapes = {
        "embeddings.tok_embeddings.weight": (rows, WIDTH),
        "embeddings.norm.weight": (WIDTH,),
        "final_norm.weight": (WIDTH,),
    }
    for i in range(layers):
        shapes |= {
            f"layers.{i}.attn.Wqkv.weight": (3 * WIDTH, WIDTH),
            f"layers.{i}.attn.Wo.weight": (WIDTH, WIDTH),
            f"layers.{i}.mlp.Wi.weight": (2 * GATED, WIDTH),
            f"layers.{i}.mlp.Wo.weight": (WIDTH, GATED),
            f"layers.{i}.mlp_norm.weight": (WIDTH,),
        }
        if i:
            shapes[f"layers.{i}.attn_norm.weight"] = (WIDTH,)
    return shapes


def write_modernbert(folder, change=lambda tensors: None, **values):
    """A folder as Hugging Face's `ModernBertModel` is saved, with Gemma's kind of pieces.

    `values` stand in config.json in place of its own.
    """
    foreign.write_safetensors(folder, modernbert_shapes(len(BPE) + 3), change=change)
    sizes = {**SIZES, "num_hidden_layers": 5, "intermediate_size": GATED}
    settings = dict(model_type="modernbert", **sizes, local_attention=6, max_position_embeddings=64)
    settings |= dict(vocab_size=len(BPE) + 3, pad_token_id=0, bos_token_id=2, eos_token_id=1, cls_token_id=2)
    foreign.write_json(folder / "config.json", **{**settings, **values})
    write_gemma_pieces(folder)
    return folder


def write_gemma_pieces(folder, begin="<bos> "):
    """tokenizer.json as `GemmaTokenizer` of transformers 5.24 is saved, with begin and end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {piece: number for number, (piece, _, _) in enumerate(BPE)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    model = models.BPE(vocab=ids, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    controls = [piece for piece, _, kind in BPE if kind in ("control", "unknown")]
    tokenizer.add_special_tokens(controls)
    special = [(piece, ids[piece]) for piece in ("<bos>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{begin}$A <eos>", special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")}
    foreign.write_json(folder / "tokenizer_config.json", **names, tokenizer_class="TokenizersBackend")


MEXMA_NAMES = ("vision_model.", "text_model.", "text_projector.")  # one of the ways to name the three parts


def write_mexma_siglip(folder, change=lambda tensors: None, names=MEXMA_NAMES, bias=True, **values):
    """A folder of mexma-siglip2's form: SigLIP's image tower, an XLM-RoBERTa, one linear layer and two numbers."""
    vision, text, head = names
    rows = len(UNIGRAM) + 2  # <s> and <mask>
    of_siglip = siglip_shapes(rows)
    shapes = {
        name.replace("vision_model.", vision): shape
        for name, shape in of_siglip.items()
        if name.startswith(("vision_model.", "logit"))
    }
    shapes |= xlm_roberta_shapes(rows, text)
    shapes |= {f"{head}weight": (WIDTH, WIDTH), f"{text}pooler.dense.weight": (WIDTH, WIDTH)}
    shapes |= {f"{text}pooler.dense.bias": (WIDTH,)}
    if bias:
        shapes[f"{head}bias"] = (WIDTH,)
    foreign.write_safetensors(folder, shapes, change=scaled(change))
    towers = dict(text_config=SIZES, vision_config={**SIZES, "image_size": SIDE})
    settings = {"architectures": ["MexmaSigLIP"], "model_type": "mexma_siglip", **towers, **values}
    foreign.write_json(folder / "config.json", **settings)
    write_pieces(folder / "sentencepiece.bpe.model", _with_unknown_first())
    foreign.write_json(folder / "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer", model_max_length=12)
    write_preprocessor(folder, resample=2)
    return folder


def write_m_clip(folder, base="xlm-roberta-large", dimensions=20):
    """A folder of M-CLIP's, in safetensors; its text tower is an XLM-RoBERTa or a BERT."""
    roberta = "roberta" in base
    shapes = xlm_roberta_shapes(len(UNIGRAM) + 2) if roberta else foreign.bert_shapes()
    head = {"LinearTransformation.weight": (dimensions, WIDTH), "LinearTransformation.bias": (dimensions,)}
    foreign.write_safetensors(folder, {**{f"transformer.{name}": shape for name, shape in shapes.items()}, **head})
    foreign.write_json(folder / "config.json", model_type="M-CLIP", modelBase=base, numDims=dimensions)
    if roberta:
        write_pieces(folder / "sentencepiece.bpe.model", _with_unknown_first())
    else:
        foreign.write_vocabulary(folder, lower_case=False)
    return folder


def big_vision_names(tensors, stacked):
    """What a `SiglipModel`'s tensors are called in big_vision's file, and how they lie there."""
    found = {}

    def dense(theirs, ours):
        found[f"{theirs}/kernel"] = tensors[f"{ours}.weight"].T
        found[f"{theirs}/bias"] = tensors[f"{ours}.bias"]

    def norm(theirs, ours):
        found[f"{theirs}/scale"], found[f"{theirs}/bias"] = tensors[f"{ours}.weight"], tensors[f"{ours}.bias"]

    def attention(theirs, weights, biases, out):
        for name, weight, bias in zip(("query", "key", "value"), weights, biases):
            found[f"{theirs}/{name}/kernel"] = weight.T.reshape(WIDTH, HEADS, -1)
            found[f"{theirs}/{name}/bias"] = bias.reshape(HEADS, -1)
        dense(f"{theirs}/out", out)
        found[f"{theirs}/out/kernel"] = found[f"{theirs}/out/kernel"].reshape(HEADS, -1, WIDTH)

    def layers(theirs, ours):
        for i in range(LAYERS):
            block, layer = f"{theirs}/encoderblock_{i}", f"{ours}.encoder.layers.{i}"
            parts = [f"{layer}.self_attn.{part}_proj" for part in "qkv"]
            weights, biases = ([tensors[f"{part}.{end}"] for part in parts] for end in ("weight", "bias"))
            attention(f"{block}/MultiHeadDotProductAttention_0", weights, biases, f"{layer}.self_attn.out_proj")
            norm(f"{block}/LayerNorm_0", f"{layer}.layer_norm1")
            norm(f"{block}/LayerNorm_1", f"{layer}.layer_norm2")
            dense(f"{block}/MlpBlock_0/Dense_0", f"{layer}.mlp.fc1")
            dense(f"{block}/MlpBlock_0/Dense_1", f"{layer}.mlp.fc2")
        if stacked:
            first = f"{theirs}/encoderblock_0/"
            for name in [name for name in found if name.startswith(first)]:
                end = name.removeprefix(first)
                arrays = [found.pop(f"{theirs}/encoderblock_{i}/{end}") for i in range(LAYERS)]
                found[f"{theirs}/encoderblock/{end}"] = np.stack(arrays)

    image, text, pooling = "params/img", "params/txt", "params/img/MAPHead_0"
    vision, head = "vision_model", "vision_model.head"
    patches = tensors[f"{vision}.embeddings.patch_embedding.weight"]
    found[f"{image}/embedding/kernel"] = patches.transpose(2, 3, 1, 0)
    found[f"{image}/embedding/bias"] = tensors[f"{vision}.embeddings.patch_embedding.bias"]
    found[f"{image}/pos_embedding"] = tensors[f"{vision}.embeddings.position_embedding.weight"][None]
    layers(f"{image}/Transformer", vision)
    norm(f"{image}/Transformer/encoder_norm", f"{vision}.post_layernorm")
    found[f"{pooling}/probe"] = tensors[f"{head}.probe"]
    weights, biases = (np.split(tensors[f"{head}.attention.in_proj_{end}"], 3) for end in ("weight", "bias"))
    attention(f"{pooling}/MultiHeadDotProductAttention_0", weights, biases, f"{head}.attention.out_proj")
    norm(f"{pooling}/LayerNorm_0", f"{head}.layernorm")
    dense(f"{pooling}/MlpBlock_0/Dense_0", f"{head}.mlp.fc1")
    dense(f"{pooling}/MlpBlock_0/Dense_1", f"{head}.mlp.fc2")
    found[f"{text}/Embed_0/embedding"] = tensors["text_model.embeddings.token_embedding.weight"]
    found[f"{text}/pos_embedding"] = tensors["text_model.embeddings.position_embedding.weight"][None]
    layers(f"{text}/Encoder_0", "text_model")
    norm(f"{text}/Encoder_0/encoder_norm", "text_model.final_layer_norm")
    dense(f"{text}/head", "text_model.head")
    found["params/t"], found["params/b"] = tensors["logit_scale"], tensors["logit_bias"]
    found["opt/count"] = np.int32(7)  # of its optimiser
    return found


def write_big_vision(path, folder, stacked=False, change=lambda arrays: None):
    """The .npz of the same weights as a folder that `write_siglip` made."""
    from safetensors.numpy import load_file

    arrays = big_vision_names(load_file(folder / "model.safetensors"), stacked)
    change(arrays)
    np.savez(path, **arrays)
    return path


def tokens_of(ids):
    """A batch of full rows of ids, int32 [B, T]."""
    ids = np.array(ids, np.int32)
    return {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": np.zeros_like(ids)}
