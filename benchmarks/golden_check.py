"""Whether an imported model gives the numbers that `golden` wrote in PyTorch: ids, pixels, and each tower for itself.

    python -m benchmarks.golden_check FOLDER GOLDEN.npz

FOLDER is the checkpoint, as `python -m mural_tf import` takes it. Prints a line for each stage and PASS; where stages
differ, one line says by how much.
"""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from benchmarks.golden import FORMAT
from mural_lite import command_line as cli
from mural_lite.errors import UserError, brief
from mural_tf.data.images import prepare_image
from mural_tf.models.dual_encoder import DualEncoder
from mural_tf.pretrained.importers import import_weights, importer_of, kind_of, starting_config
from mural_tf.text import tokenizer_of
from mural_tf.text.piece_models import SPACE
from mural_tf.text.sentence_pieces import LAYOUTS, SentencePieceTokenizer
from mural_tf.text.tokenizer import Tokenizer
from mural_tf.text.tokens import TOKENS
from mural_tf.text.word_pieces import WordPieceTokenizer

MOST_APART = 1e-4  # between numbers of normalised vectors
PIXELS_APART = 3  # of 255: resizing rounds differently
PIXELS_APART_ON_AVERAGE = 0.5


def read_golden(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of `benchmarks.golden`, see `golden_vectors` there.

    Raises `UserError` for a missing or unusable file.
    """
    if not path.is_file():
        raise UserError(f"{path}: there is no such file.")
    try:
        with np.load(path) as values:  # no pickles
            golden = dict(values)
        if golden.get("format") != FORMAT:
            raise ValueError(f"it holds no {FORMAT!r}")
    except Exception as error:  # noqa: BLE001 - NumPy's reader raises many classes on damaged files
        reason = str(error) or type(error).__name__
        raise UserError(f"{path} is damaged, or not written by benchmarks/golden.py: {reason}.") from None
    return golden


def compare(
    golden: dict[str, np.ndarray], model: DualEncoder, config: ConfigDict, pieces: Sequence[str], parts: Collection[str]
) -> list[str]:
    """Compares an imported model with golden vectors; returns a line for each stage, and a last line for all together.

    The stages are "ids", "pixels", "image tower" and "text tower". Each tower gets the file's own ids and pixels, so
    that a difference is told where it arises.

    Args:
      golden: the arrays of `read_golden`.
      model: the imported model, which computes in float32.
      config: its configuration.
      pieces: its vocabulary.
      parts: the parts that were imported, "image_encoder", "text_encoder" and heads; other parts are not compared.

    Raises:
      UserError: stages differ, each named in order with the difference; or the file is of another kind of checkpoint.
    """
    stages: dict[str, tuple[bool, str]] = {}  # {stage: (whether it is equal, its line)}
    least_cosines = []  # of the whole model, from sentences and pictures on, in words

    def embed_texts(tokens: dict) -> tf.Tensor:
        """Returns the vectors of texts, by the model's first head if it was imported."""
        if f"{model.head_names[0]}_head" in parts:
            return model.embed_texts(tokens)
        return tf.math.l2_normalize(model.text_encoder(tokens), axis=-1)

    with tf.device("CPU:0"):  # accelerators may round to fewer bits
        if "text_encoder" in parts:
            tokens, stages["ids"] = _compare_ids(golden, config, pieces)
        if "image_encoder" in parts:
            images, stages["pixels"] = _compare_pixels(golden, config.image_tower)
            vectors = golden["image_vectors"]
            pixels = tf.constant(golden["pixels"] / 255.0)
            stages["image tower"] = _compare_vectors(model.embed_images(pixels), vectors)
            least_cosines.append(f"{_least_cosine(model.embed_images(images), vectors)} for {len(vectors)} pictures")
        if "text_encoder" in parts:
            vectors = golden["text_vectors"]
            golden_tokens = _tokens(golden["ids"], golden["mask"])
            stages["text tower"] = _compare_vectors(embed_texts(golden_tokens), vectors)
            least_cosines.append(f"{_least_cosine(embed_texts(tokens), vectors)} for {len(vectors)} sentences")
    differences = [f"{name}: {line}" for name, (is_equal, line) in stages.items() if not is_equal]
    if differences:
        raise UserError(f"The vectors differ from the golden vectors. {'; '.join(differences)}.")
    lines = [f"{name}: {line}" for name, (_, line) in stages.items()]
    return [*lines, f"end to end: cosines of at least {' and '.join(least_cosines)}"]


def _compare_vectors(ours: tf.Tensor, theirs: np.ndarray) -> tuple[bool, str]:
    """Compares a tower's vectors with golden vectors, [N, D] both; returns (whether they are close, the stage's line).

    Raises `UserError` for vectors of another width.
    """
    if ours.shape != theirs.shape:
        raise _other(f"has vectors of {theirs.shape[1]} numbers, and the model gives {ours.shape[1]}")
    apart = np.abs(ours.numpy() - theirs).max()
    return bool(apart <= MOST_APART), f"numbers at most {apart:.1e} apart"


def _least_cosine(ours: tf.Tensor, theirs: np.ndarray) -> str:
    """Returns the least cosine between our vectors and the golden vectors, both normalised and [N, D], as text."""
    return f"{np.sum(ours.numpy() * theirs, axis=-1).min():.5f}"


def _other(facts: str) -> UserError:
    """Returns the error for a golden file of another checkpoint; `facts` are what shows it, "has texts alone" say."""
    return UserError(f"The golden file {facts}: it is of another checkpoint.")


def _tokens(ids: np.ndarray, mask: np.ndarray) -> dict[str, tf.Tensor]:
    """Returns tokens as the text tower takes them, with type 0, from ids and mask, int32 [N, T]."""
    return dict(zip(TOKENS, map(tf.constant, (ids, mask, np.zeros_like(ids)))))


def _compare_ids(golden, config, pieces) -> tuple[dict[str, tf.Tensor], tuple[bool, str]]:
    """Returns (our tokens of the golden sentences, the result of the stage "ids").

    The result is (whether the ids are equal, its line). For the arguments see `compare`. Raises `UserError` if the file
    is of another checkpoint.
    """
    sentences = golden["sentences"].tolist()
    ids = golden["ids"]
    length = config.text_tower.max_length
    if len(ids) != len(sentences):
        raise _other(f"has {len(sentences)} sentences and {len(ids)} rows of ids")
    if ids.max() >= len(pieces):
        raise _other(f"has ids up to {ids.max()}, and the vocabulary {len(pieces)} pieces")
    if ids.shape[1] > length:
        raise _other(f"has rows of {ids.shape[1]} ids, and the model takes {length}")
    texts = [config.vocabulary.prompt + sentence for sentence in sentences]
    tokenizer = tokenizer_of(config, pieces).with_prompt("")  # the texts have it
    tokens = tokenizer(texts, pad="longest")
    golden_rows = _rows(_tokens(ids, golden["mask"]))
    our_rows = _rows(_as_hugging_face(tokenizer, texts))
    different = [row for row, ours in enumerate(our_rows) if ours != golden_rows[row]]
    if different:
        first = different[0]
        difference = _difference(our_rows[first], golden_rows[first])
        line = f"{len(different)} of {len(texts)} sentences differ, first {brief(texts[first])}: {difference}"
        return tokens, (False, line)
    line = f"equal for {len(texts)} sentences"
    explained = sum(ours != theirs for ours, theirs in zip(_rows(tokens), golden_rows))
    if explained:
        line += f", {explained} of them but for the tokens that docs/checkpoints.md names"
    return tokens, (True, line)


def _difference(ours: list[int], theirs: list[int]) -> str:
    """Returns a text that tells how two lists of ids differ, with five ids of each from the first difference on."""
    begin = min(len(ours), len(theirs))  # if the longer list begins with the shorter
    for position, (our_id, their_id) in enumerate(zip(ours, theirs)):
        if our_id != their_id:
            begin = position
            break
    return (
        f"{len(ours)} ids here, {len(theirs)} there; from place {begin} {ours[begin : begin + 5]} here, "
        f"{theirs[begin : begin + 5]} there"
    )


def _as_hugging_face(tokenizer: Tokenizer, texts: list[str]) -> dict[str, tf.Tensor]:
    """Returns our tokens of texts, but Hugging Face's where docs/checkpoints.md says that the two differ.

    BERT: a word with an unknown character is [UNK], and no sigma is a final sigma. SigLIP: a text that begins with
    white space has an additional "▁".
    """
    if isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.layout is LAYOUTS["siglip"]:
        texts = [SPACE + text.lstrip() if text[:1].isspace() else text for text in texts]
    if type(tokenizer) is not WordPieceTokenizer:
        return tokenizer(texts, pad="longest")
    if tokenizer.lower_case:
        texts = [text.replace("Σ", "σ") for text in texts]
    unknown = tokenizer.unknown_id
    rows = []
    for words in tokenizer.tokenize(texts).to_list():  # the ids of each word's pieces
        ids = []
        for word in words:
            ids += [unknown] if unknown in word else word
        rows.append(ids)
    return tokenizer.pack(tf.ragged.constant(rows, tf.int32))


def _rows(tokens: dict[str, tf.Tensor]) -> list[list[int]]:
    """Returns the ids of each text as a list, without padding, from tokens as the text tower takes them."""
    ids_name, mask_name, _ = TOKENS
    masks = tokens[mask_name].numpy()
    return [ids[mask == 1].tolist() for ids, mask in zip(tokens[ids_name].numpy(), masks)]


def _compare_pixels(golden, tower: ConfigDict) -> tuple[tf.Tensor, tuple[bool, str]]:
    """Returns (our pixels of the golden pictures, uint8 [M, S, S, 3], the result of the stage "pixels").

    The result is (whether they are close, its line). `tower`: the configuration of the image tower. Raises `UserError`
    if the file is of another checkpoint.
    """
    if "pixels" not in golden:
        raise _other("has texts alone, and the weights an image tower")
    theirs = golden["pixels"]
    ours = tf.stack([prepare_image(golden[f"picture_{i}"].tobytes(), tower) for i in range(len(theirs))])
    if ours.shape != theirs.shape:
        raise _other(f"has pixels of {list(theirs.shape)}, and the model takes {list(ours.shape)}")
    apart = np.abs(ours.numpy() - theirs).round(2)
    is_close = apart.max() <= PIXELS_APART and apart.mean() <= PIXELS_APART_ON_AVERAGE
    return ours, (bool(is_close), f"at most {apart.max():.0f} of 255 apart, {apart.mean():.2f} on average")


def main(arguments: Sequence[str]) -> None:
    """Compares a checkpoint's folder with a golden file, and prints the stages' lines and PASS.

    `arguments`: the program's name, the folder and the file. Raises `UserError` if they differ or cannot be read.
    """
    if len(arguments) != 3:
        raise UserError("Expected two arguments: the checkpoint's folder, and the file of benchmarks.golden.")
    weights, path = map(pathlib.Path, arguments[1:])
    source = kind_of(weights)
    if not source:
        raise UserError(f"{weights} is not the folder of a checkpoint that docs/checkpoints.md names.")
    golden = read_golden(path)
    imported = import_weights(source, weights, starting_config(source))
    print("\n".join(compare(golden, *imported, importer_of(source).parts)))
    print(f"PASS: {weights} gives here what {path} says.")


if __name__ == "__main__":
    cli.run(main, positional=True)
