"""A batch of texts as text towers take it: three integer tensors of one shape, BERT's (Devlin et al., 2019).

input_word_ids    the ids of pieces or words, begin and end included
input_mask        1 on tokens, 0 on padding
input_type_ids    0; a tower of words has each row's language here
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

TOKENS = ("input_word_ids", "input_mask", "input_type_ids")  # int32 [B, T] each


def fill_rows(ids: tf.RaggedTensor, pad: int, length: int | tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rows of ids, padded with the id `pad` to `length` or else to the longest, and masks, [B, T] each."""
    if length is None:
        rows = ids.to_tensor(pad)  # [B, T]
    elif isinstance(length, int):
        rows = ids.to_tensor(pad, shape=[None, length])  # a static shape
    else:
        rows = ids.to_tensor(pad, shape=tf.stack([-1, length]))
    return rows, tf.sequence_mask(ids.row_lengths(), tf.shape(rows)[1], tf.int32)


def framed_rows(
    begin: Sequence[int], ids: tf.RaggedTensor, end: int, pad: int, length: int | tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Returns {name of `TOKENS`: int32 [B, T]} with the ids `begin`, a row's ids, `end` and padding; types are 0."""
    column = tf.ones([ids.nrows(), 1], tf.int32)
    rows = tf.concat([*(begin_id * column for begin_id in begin), ids, end * column], axis=1)  # [B, (T)]
    word_ids, mask = fill_rows(rows, pad, length)
    return {"input_word_ids": word_ids, "input_mask": mask, "input_type_ids": tf.zeros_like(word_ids)}


def tag_language(texts: tf.Tensor, languages: tf.Tensor | str) -> tf.Tensor:
    """Returns texts, string [B], with the tags of languages, string [B] or a scalar: "<de> ein Haus"."""
    return tf.strings.join(["<", tf.broadcast_to(languages, tf.shape(texts)), "> ", texts])
