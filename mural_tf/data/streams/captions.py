"""A caption without its picture: "caption" (tokens), "caption_id"; with a cloze task also "cloze", masked tokens.

Masked as in BERT (Devlin et al., 2019, §3.1) and [Globetrotter] §3.3: of a text with n pieces (special tokens not
counted) round(share · n), at least one, are to be predicted; of these 80% become [MASK], 10% a random piece and 10%
stay. The number of places is the same for all texts of a batch, so that shapes are static where the tokens' are; places
that a text does not need have weight 0.

Departure: Globetrotter's released code selects each token with probability 1/6 and also corrupts tokens that are not
to be predicted. Its captions are masked for all of its losses; here the other losses see the whole caption.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from mural_tf.data.streams.stream import Stream


class ClozeCaptions(Stream):
    """Base of streams whose captions may be masked."""

    fields = dict(cloze_weight=0.0)  # λ3 of L_c, masked tokens

    def cloze_caption(self, items: dict, seed: tf.Tensor) -> dict:
        """Returns the entries of `Stream.caption` and, with a cloze task, "cloze", as `mask_tokens` returns it.

        Args:
          items: {name: string [B]}.
          seed: int64 [2], of the masks.
        """
        caption = self.caption(items)
        if not self.settings.own.cloze_weight:
            return caption
        masked = mask_tokens(caption["caption"], self.texts.tokenizer, SHARE, seed)
        return {**caption, "cloze": masked}


class Captions(ClozeCaptions):
    """Captions whose pictures are neither decoded nor checked."""

    decode = None
    with_pictures = False

    def make_batch(self, items, seed):
        entries = self.cloze_caption(items, seed)
        del entries["image_id"]  # there are no pictures to identify
        return entries


SHARE = 0.15  # the share of pieces to predict, as in BERT
# Shares of the places to predict; the pieces at the others stay.
MASKED = 0.8
RANDOM = 0.1


def mask_tokens(tokens: dict[str, tf.Tensor], tokenizer, share: float, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Masks some pieces of each text, and returns the tokens and the original pieces (see the module).

    Args:
      tokens: {"input_word_ids", "input_mask", "input_type_ids": int32 [B, T]}, as the tokenizer gives them.
      tokenizer: `text.WordPieceTokenizer` or another with `special_ids`, `mask_id` and `vocabulary_size`.
      share: the share of the pieces to predict, above 0, at most 1.
      seed: int [2]; the same seed masks the same pieces.

    Returns:
      `tokens` with masked "input_word_ids" and three entries [B, K], K = ceil(share · (T - 2)), at least 1: "places",
      int32, the columns of pieces in `tokens`; "targets", int32, the pieces' ids before masking; "weights", float32, 1
      for a piece to predict and 0 for others.
    """
    ids = tokens["input_word_ids"]
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    is_special = tf.reduce_any(tf.equal(ids[..., None], tf.constant(tokenizer.special_ids)), axis=-1)  # [B, T]
    is_piece = (tokens["input_mask"] > 0) & ~is_special
    piece_count = tf.reduce_sum(tf.cast(is_piece, tf.float32), axis=1)  # [B]
    target_count = tf.where(piece_count > 0, tf.maximum(tf.round(share * piece_count), 1.0), 0.0)

    # Special tokens and padding get -1, which is below all random numbers.
    order = tf.where(is_piece, tf.random.stateless_uniform(tf.shape(ids), seeds[0]), -1.0)  # [B, T]
    _, positions = tf.math.top_k(order, _place_count(ids, share))  # [B, K]: pieces come first, in random order
    shape = tf.shape(positions)
    rank = tf.cast(tf.range(shape[1]), tf.float32)  # [K]
    weights = tf.cast(rank[None, :] < target_count[:, None], tf.float32)  # [B, K]
    targets = tf.gather(ids, positions, batch_dims=1)  # [B, K]

    new_pieces = _replace_pieces(targets, tokenizer, seeds[1], seeds[2])
    new_pieces = tf.where(weights > 0, new_pieces, targets)
    rows = tf.broadcast_to(tf.range(shape[0])[:, None], shape)
    indices = tf.stack([rows, positions], axis=2)  # [B, K, 2]
    masked = tf.tensor_scatter_nd_update(ids, indices, new_pieces)
    return {
        **tokens,
        "input_word_ids": tf.ensure_shape(masked, ids.shape),
        "places": positions,
        "targets": targets,
        "weights": weights,
    }


def _replace_pieces(pieces: tf.Tensor, tokenizer, choice_seed: tf.Tensor, piece_seed: tf.Tensor) -> tf.Tensor:
    """Returns pieces, ids int32 [B, K], the share `MASKED` of them as [MASK] and the share `RANDOM` as random pieces.

    `choice_seed` draws which pieces are replaced, `piece_seed` the random pieces, int [2] both.
    """
    shape = tf.shape(pieces)
    draw = tf.random.stateless_uniform(shape, choice_seed)
    ordinary_ids = np.setdiff1d(np.arange(tokenizer.vocabulary_size), tokenizer.special_ids)
    index = tf.random.stateless_uniform(shape, piece_seed, 0, len(ordinary_ids), tf.int32)
    random_pieces = tf.gather(tf.constant(ordinary_ids, tf.int32), index)
    replaced = tf.where(draw < MASKED + RANDOM, random_pieces, pieces)
    return tf.where(draw < MASKED, tokenizer.mask_id, replaced)


def _place_count(ids: tf.Tensor, share: float) -> int | tf.Tensor:
    """Returns the K of `mask_tokens` for ids, int32 [B, T]: an int where T is static, else an int32 scalar."""
    length = ids.shape[1]  # with [CLS] and [SEP], so that at most T - 2 are pieces
    if length is not None:
        return max(1, math.ceil(share * (length - 2)))
    pieces = tf.cast(tf.shape(ids)[1] - 2, tf.float32)
    return tf.maximum(1, tf.cast(tf.math.ceil(share * pieces), tf.int32))
