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

MOST_APART = 1e-4  # numbers of normalised vectors
PIXELS_APART = 3  # of 255: resizing rounds differently
PIXELS_APART_ON_AVERAGE = 0.5


def read_golden(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns a file's arrays, as of `golden.golden_vectors`; raises `UserError` for a missing or unusable file."""
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
    """Returns a line for each stage, and one for all of them together.

    Each tower gets the file's own ids and pixels, so that a difference is told where it arises.

    Args:
      golden: what `read_golden` returned.
      model: computes in float32.
      config: its configuration.
      pieces: its vocabulary.
      parts: the parts that were imported; other parts are not looked at.

    Raises:
      UserError: stages differ, each named in order with the difference; or the file is of another kind of checkpoint.
    """
    stages: dict[str, tuple[bool, str]] = {}  # {stage: (whether it is equal, its line)}
    cosines = []

    def compare_tower(name: str, embed, golden_inputs, our_inputs, there: np.ndarray, items: str) -> None:
        here = embed(golden_inputs).numpy()
        if here.shape != there.shape:
            raise _other(f"has vectors of {there.shape[1]} numbers, and the model gives {here.shape[1]}")
        apart = np.abs(here - there).max()
        stages[name] = bool(apart <= MOST_APART), f"numbers at most {apart:.1e} apart"
        least = np.sum(embed(our_inputs).numpy() * there, axis=-1).min()
        cosines.append(f"{least:.5f} for {len(there)} {items}")

    def embed_texts(tokens: dict) -> tf.Tensor:
        if f"{model.head_names[0]}_head" in parts:
            return model.embed_texts(tokens)
        return tf.math.l2_normalize(model.text_encoder(tokens), axis=-1)

    with tf.device("CPU:0"):  # accelerators may round to fewer bits
        if "text_encoder" in parts:
            tokens, stages["ids"] = _compare_ids(golden, config, pieces)
        if "image_encoder" in parts:
            images, stages["pixels"] = _compare_pixels(golden, config.image_tower)
            pixels = tf.constant(golden["pixels"] / 255.0)
            compare_tower("image tower", model.embed_images, pixels, images, golden["image_vectors"], "pictures")
        if "text_encoder" in parts:
            golden_tokens = _tokens(golden["ids"], golden["mask"])
            compare_tower("text tower", embed_texts, golden_tokens, tokens, golden["text_vectors"], "sentences")
    differences = [f"{name}: {line}" for name, (is_equal, line) in stages.items() if not is_equal]
    if differences:
        raise UserError(f"The vectors differ from the golden vectors. {'; '.join(differences)}.")
    lines = [f"{name}: {line}" for name, (_, line) in stages.items()]
    return [*lines, f"end to end: cosines of at least {' and '.join(cosines)}"]


def _other(facts: str) -> UserError:
    """Returns the error for a file of another checkpoint."""
    return UserError(f"The golden file {facts}: it is of another checkpoint.")


def _tokens(ids: np.ndarray, mask: np.ndarray) -> dict[str, tf.Tensor]:
    """Returns tokens as the text tower takes them, with type 0."""
    return dict(zip(TOKENS, map(tf.constant, (ids, mask, np.zeros_like(ids)))))


def _compare_ids(golden, config, pieces) -> tuple[dict[str, tf.Tensor], tuple[bool, str]]:
    """Returns our tokens and the stage's result, (whether the ids are equal, its line)."""
    sentences = golden["sentences"].tolist()
    ids = golden["ids"]
    length = config.text_tower.max_length
    if ids.max() >= len(pieces):
        raise _other(f"has ids up to {ids.max()}, and the vocabulary {len(pieces)} pieces")
    if ids.shape[1] > length:
        raise _other(f"has rows of {ids.shape[1]} ids, and the model takes {length}")
    texts = [config.vocabulary.prompt + sentence for sentence in sentences]
    tokenizer = tokenizer_of(config, pieces).with_prompt("")
    tokens = tokenizer(texts, pad="longest")
    there = _rows(_tokens(ids, golden["mask"]))
    here = _rows(_as_hugging_face(tokenizer, texts))
    different = [row for row, (ours, theirs) in enumerate(zip(here, there)) if ours != theirs]
    if not different:
        line = f"equal for {len(texts)} sentences"
        explained = sum(ours != theirs for ours, theirs in zip(_rows(tokens), there))
        if explained:
            line += f", {explained} of them but for the tokens that docs/checkpoints.md names"
        return tokens, (True, line)
    first = different[0]
    difference = _difference(here[first], there[first])
    line = f"{len(different)} of {len(texts)} sentences differ, first {brief(texts[first])}: {difference}"
    return tokens, (False, line)


def _difference(ours: list[int], theirs: list[int]) -> str:
    """Returns in words how two lists of ids differ, with five ids of each from the first difference on."""
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
    """Returns our tokens, changed to Hugging Face's where docs/checkpoints.md says that they differ.

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
    """Returns the ids of each text, without padding."""
    ids_name, mask_name, _ = TOKENS
    masks = tokens[mask_name].numpy()
    return [ids[mask == 1].tolist() for ids, mask in zip(tokens[ids_name].numpy(), masks)]


def _compare_pixels(golden, tower: ConfigDict) -> tuple[tf.Tensor, tuple[bool, str]]:
    """Returns our pixels, uint8 [M, S, S, 3], and the stage's result, (whether they are close, its line)."""
    if "pixels" not in golden:
        raise _other("has texts alone, and the weights an image tower")
    there = golden["pixels"]
    here = tf.stack([prepare_image(golden[f"picture_{i}"].tobytes(), tower) for i in range(len(there))])
    if here.shape != there.shape:
        raise _other(f"has pixels of {list(there.shape)}, and the model takes {list(here.shape)}")
    apart = np.abs(here.numpy() - there).round(2)
    is_equal = apart.max() <= PIXELS_APART and apart.mean() <= PIXELS_APART_ON_AVERAGE
    return here, (bool(is_equal), f"at most {apart.max():.0f} of 255 apart, {apart.mean():.2f} on average")


def main(arguments: Sequence[str]) -> None:
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
