"""Whether an imported model gives what `golden.py` wrote in PyTorch: ids, pixels, and each tower for itself."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from mural_tf.data.images import prepare_image
from mural_tf.errors import UserError, brief
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained.golden import FORMAT
from mural_tf.text import build_tokenizer
from mural_tf.text.vocabulary_file import save_vocabulary
from mural_tf.text.word_pieces import TOKENS, WordPieceTokenizer

MOST_APART = 1e-4  # numbers of a normalised vector
PIXELS_APART, PIXELS_APART_ON_AVERAGE = 3, 0.5  # of 255: resizing rounds differently
TEXTS = {"sentences": ("str", 1), "ids": ("int32", 2), "mask": ("int32", 2), "text_vectors": ("float32", 2)}
IMAGES = {"pixels": ("float32", 4), "image_vectors": ("float32", 2)}


def read_golden(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of `golden.golden_vectors`; raises `UserError` for a file that is missing, damaged or foreign.

    Those of images are absent for a checkpoint of texts alone.
    """
    if not path.is_file():
        raise UserError(f"--golden={path}: there is no such file.")
    try:
        with np.load(path) as values:  # no pickles
            golden = {name: values[name] for name in values}
        if str(golden.get("format")) != FORMAT:
            raise ValueError(f"format is not {FORMAT!r}")
        _check_arrays(golden, TEXTS, len(golden["sentences"]))
        if golden["ids"].shape != golden["mask"].shape:
            raise ValueError("ids and mask differ in shape")
        if "pixels" in golden:
            _check_arrays(golden, IMAGES, sum(name.startswith("picture_") for name in golden))
    except Exception as error:  # noqa: BLE001 - NumPy's reader raises many classes on damaged files
        reason = str(error) or type(error).__name__
        raise UserError(f"{path} is damaged, or not written by mural_tf/pretrained/golden.py: {reason}.") from None
    return golden


def _check_arrays(golden: dict[str, np.ndarray], expected: dict[str, tuple[str, int]], rows: int) -> None:
    for name, (kind, rank) in expected.items():
        array = golden[name]
        if not array.dtype.name.startswith(kind) or array.ndim != rank or len(array) != rows or not array.size:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)}")


def compare(
    golden: dict[str, np.ndarray], model: DualEncoder, config: ConfigDict, pieces: Sequence[str], parts: Collection[str]
) -> list[str]:
    """Returns a line for each stage, and one for all of them together.

    Each tower gets the file's own ids and pixels, so that a difference is told where it arises.

    Args:
      golden: what `read_golden` returned.
      model: computes in float32.
      config: its configuration.
      pieces: its vocabulary.
      parts: those of its parts that were imported; the others are not looked at.

    Raises:
      UserError: the stages that differ and by how much, the first one first; or a file of another kind of checkpoint.
    """

    def embed_texts(tokens: dict) -> tf.Tensor:
        if f"{model.head_names[0]}_head" in parts:
            return model.embed_texts(tokens)
        return tf.math.l2_normalize(model.text_encoder(tokens), axis=-1)

    stages: dict[str, tuple[bool, str]] = {}
    together = []
    with tf.device("CPU:0"):  # accelerators may round to fewer bits
        if "text_encoder" in parts:
            tokens, same, stages["ids"] = _compare_ids(golden, config, pieces)
        if "image_encoder" in parts:
            images, stages["pixels"] = _compare_pixels(golden, config.image_tower)
            there = golden["image_vectors"]
            given = tf.constant(golden["pixels"] / 255.0, tf.float32)
            stages["image tower"] = _compare_vectors(model.embed_images(given), there)
            together.append(f"{_least_cosine(model.embed_images(images), there)} for {len(there)} pictures")
        if "text_encoder" in parts:
            there, ids = golden["text_vectors"], golden["ids"]
            given = dict(zip(TOKENS, map(tf.constant, (ids, golden["mask"], np.zeros_like(ids)))))
            stages["text tower"] = _compare_vectors(embed_texts(given), there)
            together.append(
                f"{_least_cosine(tf.gather(embed_texts(tokens), same), there[same])} for {len(same)} sentences"
            )
    apart = [f"{name}: {line}" for name, (is_equal, line) in stages.items() if not is_equal]
    if apart:
        raise UserError(f"Not the golden vectors, so nothing was written. {'; '.join(apart)}.")
    lines = [f"{name}: {line}" for name, (_, line) in stages.items()]
    return [*lines, f"end to end: cosines of at least {' and '.join(together)}"]


def _compare_ids(golden, config, pieces) -> tuple[dict, list[int], tuple[bool, str]]:
    """Returns our tokens, the places of the sentences with the very same ids, and the stage's result."""
    texts, ids, length = golden["sentences"].tolist(), golden["ids"], config.text_tower.max_length
    if ids.min() < 0 or ids.max() >= len(pieces):
        raise UserError(
            f"The golden file has ids from {ids.min()} to {ids.max()}, and the vocabulary {len(pieces)} pieces: it is "
            "of another checkpoint."
        )
    if ids.shape[1] > length:
        raise UserError(
            f"The golden file has rows of {ids.shape[1]} ids, and the model takes {length}: it is of another "
            f"checkpoint, or --config must say text_tower.max_length={ids.shape[1]}."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "vocabulary.txt")
        save_vocabulary(pieces, path)
        tokenizer = build_tokenizer(config, path)
    tokens = tokenizer(texts, pad="longest")
    own, there = _rows(tokens), _rows(dict(zip(TOKENS, (ids, golden["mask"]))))
    same = [i for i, (a, b) in enumerate(zip(own, there)) if a == b]
    here = _rows(_with_whole_unknowns(tokenizer, texts)) if type(tokenizer) is WordPieceTokenizer else own
    different = [i for i, (a, b) in enumerate(zip(here, there)) if a != b]
    if not different:
        divided = len(texts) - len(same)
        note = f" ({divided} have a word with an unknown character: one [UNK] there, divided here)" if divided else ""
        return tokens, same, (True, f"equal for {len(texts)} sentences{note}")
    first = different[0]
    a, b = here[first], there[first]
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    line = (
        f"{len(different)} of {len(texts)} sentences differ, first {brief(texts[first])}: {len(a)} ids here, {len(b)} "
        f"there; from place {at} {a[at : at + 5]} here, {b[at : at + 5]} there"
    )
    return tokens, same, (False, line)


def _with_whole_unknowns(tokenizer: WordPieceTokenizer, texts: list[str]) -> dict[str, tf.Tensor]:
    """Tokens as BERT's own tokenizer has them."""
    unknown = tokenizer.unknown_id
    rows = [
        [piece for word in row for piece in ([unknown] if unknown in word else word)]
        for row in tokenizer.tokenize(texts).to_list()
    ]
    return tokenizer.pack(tf.ragged.constant(rows, tf.int32))


def _rows(tokens) -> list[list[int]]:
    """The ids without padding."""
    ids, mask = (np.asarray(tokens[name]) for name in TOKENS[:2])
    return [row[kept == 1].tolist() for row, kept in zip(ids, mask)]


def _compare_pixels(golden, tower: ConfigDict) -> tuple[tf.Tensor, tuple[bool, str]]:
    """Returns our uint8 [M, S, S, 3] and the stage's result."""
    if "pixels" not in golden:
        raise UserError("The golden file has texts alone, and the weights an image tower: it is of another checkpoint.")
    there = golden["pixels"]
    here = tf.stack([prepare_image(golden[f"picture_{i}"].tobytes(), tower) for i in range(len(there))])
    if here.shape != there.shape:
        raise UserError(
            f"Not the golden vectors, so nothing was written. pixels: {here.shape[1]} x {here.shape[2]} here, "
            f"{there.shape[1]} x {there.shape[2]} there."
        )
    apart = np.abs(here.numpy() - there).round(2)
    is_equal = apart.max() <= PIXELS_APART and apart.mean() <= PIXELS_APART_ON_AVERAGE
    return here, (bool(is_equal), f"at most {apart.max():.0f} of 255 apart, {apart.mean():.2f} on average")


def _compare_vectors(here: tf.Tensor, there: np.ndarray) -> tuple[bool, str]:
    if here.shape != there.shape:
        raise UserError(
            f"The golden file has vectors of {there.shape[1]} numbers, and the model gives {here.shape[1]}: it is of "
            "another checkpoint."
        )
    apart = np.abs(here.numpy() - there).max()
    return bool(apart <= MOST_APART), f"numbers at most {apart:.1e} apart"


def _least_cosine(here: tf.Tensor, there: np.ndarray) -> str:
    return f"{np.sum(here.numpy() * there, axis=-1).min(initial=1.0):.5f}"
