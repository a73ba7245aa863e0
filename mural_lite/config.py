"""The configuration every part reads: one tree of fields with the paper's values as defaults.

`base_config()` is MURAL-base, [MURAL] (Jain et al., 2021) §3.2 and appendix A.1; [ETCL] marks values
from the triple-contrastive follow-up where MURAL is silent. A file in `configs/` calls it, changes fields and
returns it; `config_file.py` keeps it in workdirs. This module imports no TensorFlow, so that `--help` stays fast.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mural_lite.errors import UserError

_IMAGE_TOWER = dict(
    name="efficientnet",  # or "efficientnet_lite"; "resnet" (18 layers at width and depth 1); "vit", "naflex";
    # "hub" for a TF-Hub image module; "none", a model of only texts; "features": records hold computed features, see
    # ingest/features.py
    weights="",  # a trained tower that a new run starts with: a folder, a file or a name that `import` takes; it says
    # the tower's name, sizes and normalisation
    handle="",  # hub: handle or local folder
    feature_size=0,  # features: numbers for each image; 2048 of ResNet-152 [MULE]
    branch_size=0,  # N: Dense(N), BatchNorm, ReLU before the projection; 2048 in [MULE]
    width=1.6,  # EfficientNet-B5's width coefficient [MURAL §3.2]
    depth=2.2,  # EfficientNet-B5's depth coefficient
    image_size=289,  # pixels; side of the (random or centre) crop the tower sees [ETCL]
    resize=346,  # pixels; images are first resized to resize x resize, ignoring aspect [ETCL]
    resize_mode="squash",  # "shorter_side": it becomes `resize`, of the longer the centre is kept; "patches": naflex's
    interpolation="bilinear",  # "bicubic", as Pillow's; "big_vision": bilinear, not anti-aliased, then cut off
    jpeg="fast",  # decoding as TensorFlow's default; "accurate": as Pillow
    normalization="imagenet",  # of pixels: "imagenet" or "clip" mean and deviation, "symmetric" [-1, 1], "none" [0, 1];
    # "given": the next two, of red, green and blue in [0, 1]
    pixel_mean=(0.5, 0.5, 0.5),
    pixel_deviation=(0.5, 0.5, 0.5),
    padding="same",  # of stride-2 convolutions; "even": see encoders/efficientnet.py
    patches=256,  # naflex: of a picture at most
    position_grid=16,  # naflex: rows and columns of learned positions
    patch_size=16,  # vit: pixels; these and the following are SigLIP's base
    layers=12,  # vit
    hidden_size=768,  # vit
    heads=12,  # vit
    feed_forward_size=3072,  # vit
    activation="gelu_tanh",  # vit: or "gelu", "quick_gelu" (OpenAI's CLIP)
    epsilon=1e-6,  # vit: of layer normalisation; 1e-5 in CLIP
    pooling="attention",  # vit: over all patches, as in SigLIP; or "class", a class token and a first norm, as in CLIP
    drop_connect_rate=0.2,  # EfficientNet's stochastic depth, 0..1
    pooled_stages=False,  # EfficientNet: means over space of every stage's output, not only of the last
    class_names="",  # EfficientNet-Lite: names of its classes, a JSON list, for ConSE: see encoders/adapters.py
    classes=0,  # how many they are, and the numbers in a name's vector; the names' file and the text tower say both
    class_name_size=0,
    batch_norm_momentum=0.99,
    batch_norm_group="local",  # examples that share statistics: "local" (a replica's), "global" or a number
    projection=0,  # 0: none, the last block is as wide as the embedding [MURAL A.1]; N: Dense(N)
    head_size=0,  # N: Dense, GELU, layer norm, Dense(N) after that, as in Globetrotter
    adapter_size=0,  # N: a head for a frozen tower, Dense(N), GELU, Dense(projection), see encoders/adapters.py
    adapter_dropout=0.0,  # of the layer between, 0..1
    adapter_noise=0.0,  # added to states in training, in units of their deviation
    precision="auto",  # the platform's fast one, see encoders/kernels.py; or "float32", "mixed_bfloat16"
    frozen=False,
    cached=False,  # frozen: the tower's output for each picture is computed once and kept; no augmentation then
)

_TEXT_TOWER = dict(
    name="bert",  # "bert", "modernbert", "hub" for a TF-Hub encoder with LaBSE's interface, "words" for word vectors;
    # "features": set where heads are trained on states that a frozen tower gave before, see models/frozen.py
    weights="",  # as the image tower's; it also brings the vocabulary, and `max_length` stays
    handle="",  # hub: handle or local folder
    languages=(),  # words: those the tower knows; each has its own vectors and projection
    word_vectors="",  # words: FastText files, a path with "{language}"; empty: random vectors
    word_size=300,  # words: numbers in a vector [MULE]
    frozen_words=False,  # words: keep the vectors as they are
    language_size=512,  # words: width of the universal language embedding [MULE]
    language_branches="shared",  # words: one sentence branch; "parallel": one for each language (PARALLEL-EmbN)
    projection=512,  # words: width of the sentence embedding [MULE]
    layers=12,
    hidden_size=768,
    heads=12,
    feed_forward_size=3072,
    pooler_size=0,  # N: BERT's own Dense(N, tanh) on [CLS], hidden_size in LaBSE; MURAL has its heads instead
    token_embedding_size=0,  # 0: hidden_size; 256 in MURAL-large, then projected to hidden_size [MURAL A.1]
    dropout=0.1,
    max_length=64,  # tokens with [CLS] and [SEP] [ETCL]
    head_hidden_size=0,  # N: heads are MLPs, Dense(N), GELU, Dense; one layer learns better [MURAL A.1]
    bridged=False,  # set by run_finetune.py: the tower took another's place, and pictures know nothing of it
    norm="after",  # of a layer's two halves, as in BERT; or "before", as in SigLIP
    activation="gelu",  # or "gelu_tanh" (SigLIP), "quick_gelu" (OpenAI's CLIP), "silu"
    epsilon=1e-12,  # of layer normalisation; 1e-5 in XLM-RoBERTa, 1e-6 in SigLIP
    attention="masked",  # no token sees padding; "full": all do, as in SigLIP, whose rows all have `max_length`;
    # "causal": a token sees those before it, as in CLIP
    attention_every=3,  # modernbert: every third layer is global, in the others a token sees those at most
    attention_window=64,  # tokens away
    rotary_bases=(160_000.0, 10_000.0),  # modernbert: of positions in global and in local layers
    pooling="first",  # [CLS] alone; "mean" of all tokens; "first_and_mean" for Globetrotter; "last" (SigLIP);
    # "end": the last token (CLIP)
    length_groups=1,  # N > 1: training skips padding: a batch's texts run in N parts of similar length
    adapter_size=0,  # as the image tower's: every head of the text tower is one
    adapter_dropout=0.0,
    adapter_noise=0.0,
    precision="auto",  # as the image tower's
    frozen=False,
    cached=False,  # as the image tower's
)

_VOCABULARY = dict(
    size=250_000,  # word pieces with reserved tokens, an upper bound [MURAL §3.2]
    builder="tokenizers",  # word pieces, by Hugging Face's package; "byte_pair": byte-level BPE;
    # "sentence_pieces": `file` is a SentencePiece model or tokenizer.json, and the next two say how it is used
    layout="",  # of rows: "siglip", "siglip2", "xlm_roberta", "clip", or three pieces, see text/sentence_pieces.py
    cleaning=(),  # before pieces: "lower_ascii", "lower_unicode", "lower_characters", "no_punctuation",
    # "single_spaces", "spaces_for_underscores", "composed", "clip_words", "plain_characters" (open_clip's),
    # "gpt2_words", "gpt4o_words" (byte-level pieces);
    # of word pieces "whole_chinese": Chinese characters end no word
    lower_case=False,
    strip_accents=False,  # also removes the vowel signs of Indic scripts: leave off for many languages
    prompt="",  # before every text, in the graph: "query: " of multilingual-e5
    prompts=(),  # others by name, "NAME=TEXT" each, which `encode_text(prompt=NAME)` takes in its place
    file="",  # an existing vocabulary (one piece a line) instead of building one
    sha256="",  # of the pieces, see text/vocabulary_file.py; a run writes it, and no other vocabulary is used
)

_LOSS = dict(
    image_text_weight=1.0,  # w_i2t, Eq. 1
    text_text_weight=0.1,  # w_t2t, Eq. 1; [MURAL A.1] finds 0.1 : 1 best; 0: only image-text, in fine-tuning
    temperature=1.0,  # initial value of the learned image-text temperature [MURAL §3.1]
    temperature_range=(0.01, 2.0),  # our choice: the learned value cannot leave it
    label_smoothing=0.0,  # of the image-text softmax; 0.1 in [ETCL]
    mask_duplicates=True,  # the same image or text twice in a batch is not a negative (our choice)
)

_OPTIMIZER = dict(
    name="lamb",  # "lamb", "adam" or "adamw"
    mode="joint",  # one optimiser over the weighted loss; "per_task": one per task, see optimizers/
    learning_rate=1e-3,  # image-text task [MURAL §3.2]
    text_text_learning_rate=1e-4,  # joint: of the text-text head; per_task: of the whole text-text task
    warmup_steps=10_000,  # linear from 0
    weight_decay=1e-5,  # not on biases, normalisation, temperature
    beta_2=0.999,  # 0.95 in SigLIP; beta_1 is 0.9
    epsilon=1e-6,
    clip_norm=0.0,  # global gradient norm; 0: off
    text_tower_rate=1.0,  # multiplies the learning rate of the text tower
    decay=(0.0, 0),  # (R, S), R > 0: times R every S steps instead of the linear decay; 0.794 an epoch in [MULE]
)

_TRAIN = dict(
    steps=600_000,  # linear decay to 0 ends here [MURAL §3.2]
    image_text_batch=4096,  # pairs, over all replicas [MURAL §3.2]
    text_text_batch=4096,
    micro_batches=1,  # chunks a batch is encoded in to save memory; the gradient is the full batch's
    checkpoint_every=1000,  # steps; 0: only at the end
    evaluate_every=0,  # steps between evaluations on the dev split; 0: only at the end
    evaluate_first=False,  # dev before the first step too: fine-tuning's unchanged source
    average_decay=0.0,  # D > 0: the result is an average of the weights over steps, see models/step.py
    interpolate=False,  # fine-tuning: the result is the mix of source and tuned weights that dev prefers
    log_every=50,  # steps of a row in metrics.jsonl; 0: rows only where a checkpoint or an evaluation is due
    steps_per_execution=1,
    fused="auto",  # cheap chains compiled in one: on CPUs; "on", "off": see encoders/kernels.py
    jit=False,  # compile the whole step (XLA); on a TPU it always is
    export=True,  # after the last step; run_export.py does it at any time
)

_DATA = dict(
    source="records",  # "records" (TFRecords in `directory`), "emoji" or "shapes" (built on first use)
    directory="",
    emoji="core",  # the benchmark's 25 languages; "all": every locale that names half the emoji; "core_names",
    # "all_names": without text pairs of names of languages, territories and scripts; "core_styles", "all_styles": so,
    # and trained on the drawings of two styles more
    format="mural",  # or "img2dataset" (keys jpg, txt); see docs/data.md
    sources={},  # {name: {directory, weight, format}} to train on instead of `directory`, which then
    # is where evaluation reads and vocabularies are kept; see docs/data.md
    read="share",  # of several input pipelines (hosts, workers) each reads its share of the files; or "all"
    image_text_languages=(),  # training captions in these only; empty: all
    text_pairs="files",  # or "co_captions": two captions of one image, the fine-tuning ablation of [MURAL A.1];
    # "co_captions_across_languages": two of different languages, drawn again in every epoch, for LP of [MULE]
    text_text_languages=(),  # text pairs whose second language is among these; empty: all
    language_temperature=1.0,  # language l is drawn in proportion to count^(1/temperature)
    default_language="en",  # of records that name no language (img2dataset)
    shuffle_buffer=10_000,  # items shuffled together, up to twice as many in memory; 0: only files are shuffled
    max_skipped_fraction=0.05,  # of an epoch's records; above it the run stops
)

_AUGMENTATION = dict(
    flip=True,  # left-right, probability 1/2
    shift=0.0,  # of the side, drawn from [-shift, shift]; added to the random crop
    zoom=0.0,  # scale drawn from [1 - zoom, 1 + zoom]
    stretch=0.0,  # width times, height divided by a number from [1 - stretch, 1 + stretch]
    rotation=0.0,  # degrees, drawn from [-rotation, rotation]
    color=0.0,  # strength 0..1 of brightness, contrast and saturation changes
    hue=0.0,  # degrees, drawn from [-hue, hue]
    greyscale=0.0,  # probability
    erase=0.0,  # probability of covering one rectangle
    crop_area=(1.0, 1.0),  # Globetrotter's views: share of the picture that a random crop keeps
    blur=0.0,  # Globetrotter's views: largest standard deviation of a Gaussian, pixels
)

_EVALUATION = dict(
    split="test",  # of the evaluation at the end of training; choices are made on "dev"
    source_data="",  # fine-tuning: a data set whose dev has the source's other languages; "": its own, if here
    groups={
        "well-resourced": ("en", "de", "fr", "cs", "ja", "zh", "ru", "pl", "tr"),  # [MURAL A.3]
        "under-resourced": ("tg", "uz", "ga", "be", "mg", "ceb", "ht", "war"),  # [MURAL A.3]
    },
)


def base_config() -> ConfigDict:
    """Returns the configuration of MURAL-base. It holds every field, so that an unknown `--config.x=y` is an error."""
    return ConfigDict(
        dict(
            model="mural",  # a file of models/; "mural": both tasks, "align": only image-text; or package.module:Class
            method={},  # the fields that are the method's own, in its file; `models.mount` sets both
            seed=0,
            origin="",  # of imported weights: what they are, their licence, how they are read; `import` writes it
            embedding_size=512,
            other_method=False,  # fine-tuning goes on as `model`, not as the source's; parts that it lacks are new
            shared_head=False,  # MURAL, ETCL, Globetrotter: one text head for images and texts alike
            image_tower=_IMAGE_TOWER,
            text_tower=_TEXT_TOWER,
            vocabulary=_VOCABULARY,
            loss=_LOSS,
            optimizer=_OPTIMIZER,
            train=_TRAIN,
            data=_DATA,
            augmentation=_AUGMENTATION,
            evaluation=_EVALUATION,
        )
    )


# Facts on a configuration's model, for callers that know no towers.


def has_images(tower: ConfigDict) -> bool:
    """Whether the `image_tower` part of a configuration belongs to a model with images, not only texts."""
    return tower.name != "none"


def takes_features(tower: ConfigDict) -> bool:
    """Whether a tower takes features that were computed before, float32 [B, F], in place of pixels or tokens."""
    return tower.name == "features"


def takes_languages(tower: ConfigDict) -> bool:
    """Whether the text tower of a configuration has words of each language, so that texts may name theirs."""
    return tower.name == "words"


def in_sentence_pieces(config: ConfigDict) -> bool:
    """Whether a configuration's vocabulary is SentencePiece's pieces."""
    return config.vocabulary.builder == "sentence_pieces" and not takes_languages(config.text_tower)


def training_folders(data: ConfigDict) -> list[str]:
    """Returns the folders of the training data, [] if the configuration names no folder.

    A mixture has a folder per source, in the order of the sources' names, and `directory` is only evaluated on.
    """
    if not data.sources:
        return [data.directory] if data.directory else []
    return [source["directory"] for _, source in sorted(data.sources.items())]


def prompts_of(config: ConfigDict) -> dict[str, str]:
    """Returns {name: prompt}, such as {"query": "query: "}; raises `UserError` for an entry that is not "NAME=TEXT"."""
    prompts = {}
    for entry in config.vocabulary.prompts:
        name, mark, text = entry.partition("=")
        if not name or not mark:
            raise UserError(f"vocabulary.prompts holds {entry!r}: expected NAME=TEXT, such as 'query=query: '.")
        prompts[name] = text
    return prompts
