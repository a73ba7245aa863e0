"""One text tower in six engines on one processor: milliseconds per text in batches and alone, and cosines.

    python -m benchmarks.text_engines --folder=CHECKPOINT --lite=EXPORT/lite --output=FOLDER --pytorch=VENV/bin/python

CHECKPOINT is a BERT, XLM-R or ModernBERT with mean pooling in Hugging Face's form (multilingual-e5-small, say), and
EXPORT is made of it (`import sentences`, then `run_export.py … --lite`). A ModernBERT of random weights, with sizes of
granite-embedding-97m or of mmBERT base, with pieces learned from the texts, is written by

    VENV/bin/python benchmarks/text_engines.py --make=granite --folder=CHECKPOINT --texts=FILE

Engines:

    tensorflow       this project, float32
    litert           this project without TensorFlow, as EXPORT/lite holds the encoder (int8 by default)
    torch            transformers, float32
    onnx             ONNX Runtime, float32
    onnx_int8        ONNX Runtime, weights by channel, activations on the fly
    openvino_int8    OpenVINO, weights and activations, calibrated by NNCF on 100 of the texts

The last four need torch, transformers, onnx, onnxruntime, openvino and nncf in the other environment; the ONNX and
OpenVINO files are made once in FOLDER. Each engine lives in a process of its own with one thread and embeds the same
texts when asked to, in turns, so that a busy machine slows all alike. Tokenising counts, because users pay it. Torch's
family sorts texts by length and pads a batch to its longest. Ratios are medians of the rounds' ratios of processor
time; the cosines are with torch's float32 vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

OURS = ("tensorflow", "litert")
ENGINES = (*OURS, "torch", "onnx", "onnx_int8", "openvino_int8")
BATCH = 8  # larger batches of sorted texts have more padding, and are slower in each engine
CALIBRATION = 100  # texts
MODERNBERT = {  # sizes as `ModernBertConfig` names them
    "granite": dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536,
                    hidden_activation="silu"),
    "mmbert": dict(hidden_size=768, num_hidden_layers=22, num_attention_heads=12, intermediate_size=1152),
}  # fmt: skip
PIECES = 4_000  # so many divide captions of eleven languages into 27 pieces each, as multilingual-e5-small's do


def make_modernbert(name: str, folder: str, texts: list[str]) -> None:
    """Writes a folder of Sentence-Transformers: a ModernBERT of random weights with mean pooling.

    Args:
      name: the sizes, a name in `MODERNBERT`.
      folder: the folder to write.
      texts: texts from which the tokenizer's pieces are learned.
    """
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    tokenizer = learned_tokenizer(texts)
    torch.manual_seed(0)
    ids = dict(pad_token_id=0, bos_token_id=2, eos_token_id=1, cls_token_id=2, sep_token_id=1)
    config = transformers.ModernBertConfig(vocab_size=len(tokenizer), **ids, **MODERNBERT[name])
    tower = transformers.ModernBertModel(config)
    for weight in tower.parameters():
        if weight.ndim == 2:  # as large as after training, so that each layer counts: at first it is 0.02 or less
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    with tempfile.TemporaryDirectory() as start:
        tower.save_pretrained(start)
        tokenizer.save_pretrained(start)
        parts = [modules.Transformer(start), modules.Pooling(config.hidden_size, pooling_mode="mean")]
        SentenceTransformer(modules=[*parts, modules.Normalize()], device="cpu").save_pretrained(folder)


def learned_tokenizer(texts: list[str]):
    """Returns a `GemmaTokenizer` of transformers with `PIECES` byte-pair pieces that are learned from texts."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, trainers

    pieces = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    pieces.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=PIECES, special_tokens=special))
    learned = json.loads(pieces.to_str())["model"]
    ends = dict(add_bos_token=True, add_eos_token=True, padding_side="right", model_max_length=512)
    return transformers.GemmaTokenizer(vocab=learned["vocab"], merges=list(map(tuple, learned["merges"])), **ends)


def sorted_batches(embed, tokenizer, texts: list[str], batch: int) -> np.ndarray:
    """Returns the vectors of N texts, float32 [N, D], embedded in batches of texts of similar length.

    Args:
      embed: a function (ids, mask), both int64 [B, T], -> vectors [B, D].
      tokenizer: a tokenizer of transformers.
      texts: the texts.
      batch: texts at once.
    """
    ids = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    blocks = []
    for begin in range(0, len(order), batch):
        rows = order[begin : begin + batch]
        lengths = [len(ids[row]) for row in rows]
        padded = np.full([len(rows), max(lengths)], tokenizer.pad_token_id, np.int64)
        for position, row in enumerate(rows):
            padded[position, : lengths[position]] = ids[row]
        is_token = np.arange(max(lengths)) < np.array(lengths)[:, None]  # [B, T], from [T] and [B, 1]
        mask = is_token.astype(np.int64)
        blocks.append(embed(padded, mask))
    sorted_vectors = np.concatenate(blocks)
    vectors = np.empty(sorted_vectors.shape, np.float32)
    vectors[order] = sorted_vectors
    return vectors


def torch_encoder(folder: str):
    """Returns a checkpoint's encoder as a `torch.nn.Module`, in float32, and gives PyTorch one thread.

    The module takes (ids, mask), int64 [B, T], and returns L2-normalised vectors [B, D] by mean pooling.
    """
    import torch
    from transformers import AutoModel

    torch.set_num_threads(1)

    class Encoder(torch.nn.Module):
        """The text tower and mean pooling."""

        def __init__(self):
            super().__init__()
            self.tower = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, input_ids, attention_mask):  # names of the ONNX file's inputs
            states = self.tower(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).float()
            return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    return Encoder().eval()


def make_files(folder: str, output: pathlib.Path, tokenizer, texts: list[str]) -> None:
    """Writes float32.onnx and int8.onnx for ONNX Runtime and int8.xml for OpenVINO, where they are missing.

    Args:
      folder: the checkpoint.
      output: the folder of the files.
      tokenizer: the checkpoint's tokenizer, of transformers.
      texts: texts, the first `CALIBRATION` of which calibrate OpenVINO's file.
    """
    onnx = output / "float32.onnx"
    onnx_int8 = output / "int8.onnx"
    openvino_int8 = output / "int8.xml"
    if not onnx.is_file():
        import torch

        encoder = torch_encoder(folder)
        tokens = tokenizer(texts[:2], padding=True, return_tensors="pt")  # to trace; any batch and length may follow
        names = ["input_ids", "attention_mask"]
        axes = {"vectors": {0: "batch"}}
        for name in names:
            axes[name] = {0: "batch", 1: "tokens"}
        # Opset 17 is the first with an operation for layer normalisation.
        options = dict(input_names=names, output_names=["vectors"], dynamic_axes=axes, opset_version=17, dynamo=False)
        torch.onnx.export(encoder, tuple(tokens[name] for name in names), str(onnx), **options)
    if not onnx_int8.is_file():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # `reduce_range`: weights of 7 bits, because sums with 8 bits overflow on processors without VNNI.
        quantize_dynamic(onnx, onnx_int8, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
    if not openvino_int8.is_file():
        import nncf
        import openvino

        def tokens_of(text: str) -> dict:
            """Returns the network's inputs for a text, int64 [1, T] each."""
            tokens = tokenizer(text)
            return {name: np.array([ids], np.int64) for name, ids in tokens.items() if name != "token_type_ids"}

        data = nncf.Dataset(texts[:CALIBRATION], tokens_of)
        options = dict(model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION)
        quantized = nncf.quantize(openvino.convert_model(onnx), data, **options)
        openvino.save_model(quantized, openvino_int8, compress_to_fp16=False)


def engine_of(name: str, folder: str, lite: str, output: pathlib.Path, texts: list[str]):
    """Returns an engine with one thread: a function (texts, size of a batch) -> vectors, float32 [N, D].

    Args:
      name: one of `ENGINES`.
      folder: the checkpoint.
      lite: the `lite/` of its export.
      output: the folder of the files that `make_files` makes.
      texts: texts to calibrate OpenVINO's file with.
    """
    if name == "tensorflow":
        return our_engine(folder, limit_tensorflow)
    if name == "litert":
        return our_engine(lite, limit_litert)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if name == "torch":
        embed = embed_by_torch(folder)
    else:
        make_files(folder, output, tokenizer, texts)
        if name == "openvino_int8":
            embed = embed_by_openvino(output / "int8.xml")
        elif name == "onnx_int8":
            embed = embed_by_onnx(output / "int8.onnx")
        else:
            embed = embed_by_onnx(output / "float32.onnx")
    return lambda texts, batch: sorted_batches(embed, tokenizer, texts, batch)


def our_engine(path: str, limit_threads: Callable[[], None]):
    """Returns this project's engine for a checkpoint or a `lite/`, see `engine_of`.

    It chooses the size of batches by itself. `limit_threads` gives its runtime one thread.
    """
    limit_threads()  # before the model is loaded, after which the number of threads is fixed
    import mural_tf

    embedder = mural_tf.load(path)
    return lambda texts, batch: embedder.encode_text(texts, progress=False)


def limit_tensorflow() -> None:
    """Gives TensorFlow one thread."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def limit_litert() -> None:
    """Gives LiteRT one thread."""
    from mural_lite.litert.runtime import set_threads

    set_threads(1)


# The functions (ids, mask), int64 [B, T], -> vectors, float32 [B, D], that `sorted_batches` takes.


def embed_by_torch(folder: str):
    """Returns a function (ids, mask) -> vectors that runs a checkpoint in PyTorch, float32."""
    import torch

    encoder = torch_encoder(folder)

    def embed(ids, mask):
        with torch.inference_mode():
            return encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()

    return embed


def embed_by_openvino(file: pathlib.Path):
    """Returns a function (ids, mask) -> vectors that runs an .xml file in OpenVINO with one thread."""
    import openvino

    options = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(file, "CPU", options)
    return lambda ids, mask: compiled([ids, mask])[0]


def embed_by_onnx(file: pathlib.Path):
    """Returns a function (ids, mask) -> vectors that runs an .onnx file in ONNX Runtime with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


def serve_engine(options) -> None:
    """Serves an engine in this process: it embeds texts for each request and answers with the processor seconds.

    A request is a line of JSON on standard input: {"count": number of the first texts, "batch": texts at once}, and
    perhaps "vectors": a file to write. The answer, on standard output, is {"processor": seconds}.

    `options`: the command line's.
    """
    texts = pathlib.Path(options.texts).read_text(encoding="utf-8").splitlines()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # text that libraries print goes to standard error, so that standard output has only answers
    embed = engine_of(options.worker, options.folder, options.lite, pathlib.Path(options.output), texts)
    embed(texts[:BATCH], BATCH)  # it warms up, in both sizes
    embed(texts[:1], 1)
    for line in sys.stdin:
        request = json.loads(line)
        first_texts = texts[: request["count"]]
        start = time.process_time()
        if request["batch"] == 1:
            vectors = np.concatenate([embed([text], 1) for text in first_texts])
        else:
            vectors = embed(first_texts, request["batch"])
        answer = {"processor": time.process_time() - start}
        if "vectors" in request:
            np.save(request["vectors"], vectors)
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Compares the engines, or writes the checkpoint of `--make`, or serves as one of the engines' processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="of the checkpoint")
    parser.add_argument("--make", default="", choices=("", *MODERNBERT), help="write the checkpoint, and end")
    parser.add_argument("--lite", default="", help="the lite/ of an export of it")
    parser.add_argument("--texts", required=True, help="a file with a text per line")
    parser.add_argument("--output", default="", help="a folder for the files that are made")
    parser.add_argument("--pytorch", default=sys.executable, help="the python with torch and the other engines")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=256, help="texts in batches; an eighth of them alone")
    parser.add_argument("--batch", type=int, default=BATCH, help="texts at once in torch's family")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return serve_engine(options)
    if options.make:
        texts = pathlib.Path(options.texts).read_text(encoding="utf-8").splitlines()
        return make_modernbert(options.make, options.folder, texts)
    if not options.output:
        parser.error("--output: a folder is needed for the files that are made")
    compare(options)


def compare(options) -> None:
    """Runs the engines in turns, writes their vectors, and prints a table in Markdown of times, ratios and cosines."""
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    engines = {name: start_engine(name, options) for name in options.engines.split(",")}
    cells = time_engines(engines, options)
    for name, engine in engines.items():
        engine.ask(count=options.count, batch=options.batch, vectors=str(output / f"{name}.npy"))
    first, *_ = engines
    reference_engine = "torch" if "torch" in engines else first
    reference = np.load(output / f"{reference_engine}.npy")  # [N, D]
    print(f"| engine | ms per text, in batches | {first} / it | ms alone | {first} / it | cosine, least / mean |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in engines:
        cosines = (np.load(output / f"{name}.npy") * reference).sum(axis=1)  # [N]
        print(f"| {name} | {' | '.join(cells[name])} | {cosines.min():.4f} / {cosines.mean():.4f} |")
    for engine in engines.values():
        engine.close()


def start_engine(name: str, options):
    """Starts the process of an engine, and returns it as a `Side` when it has loaded; ends this process if it fails.

    `options`: the command line's. The environment variables that give engines one thread stay set in this process.
    """
    from benchmarks.against_transformers import Side  # which the workers in the other environment do not find

    if name in OURS:
        command = [sys.executable, "-m", "benchmarks.text_engines"]
    else:
        command = [options.pytorch, __file__]
    arguments = [f"--{key}={getattr(options, key)}" for key in ("folder", "lite", "texts", "output")]
    os.environ.update(OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3")
    engine = Side([*command, f"--worker={name}", *arguments])
    engine.ask(count=1, batch=1)  # so that engines load one after the other
    return engine


def time_engines(engines: dict, options) -> dict[str, list[str]]:
    """Returns {engine: [milliseconds per text in batches, ratio, milliseconds per text alone, ratio]}, as texts.

    Milliseconds are the least of the rounds, in which each engine has its turn. The ratio is the first engine's
    processor time over the engine's: "median (least to most)" of the rounds.

    `engines`: {name: what `start_engine` returned}; `options`: the command line's.
    """
    from benchmarks.against_transformers import spread

    first, *_ = engines
    cells: dict[str, list[str]] = {name: [] for name in engines}
    for count, batch in ((options.count, options.batch), (options.count // 8, 1)):
        seconds: dict[str, list[float]] = {name: [] for name in engines}  # of each round
        for _ in range(options.rounds):
            for name, engine in engines.items():
                seconds[name].append(engine.ask(count=count, batch=batch)["processor"])
        for name in engines:
            ratios = [
                first_seconds / engine_seconds for first_seconds, engine_seconds in zip(seconds[first], seconds[name])
            ]
            least_ms = min(seconds[name]) / count * 1e3
            cells[name] += [f"{least_ms:.2f}", spread(ratios)]
    return cells


if __name__ == "__main__":
    main()
