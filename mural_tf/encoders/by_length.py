"""Running a text tower without computing on padding, where shapes may change (CPU and GPU).

A batch of texts is as wide as its longest one, and most are far shorter: on captions in many languages more than half
of a padded batch is padding. Our own BERT runs on the packed tokens (`Packing`) and computes attention in groups of
similar length. Any other tower gets its rows sorted by length, in a few groups, each cut to its own longest text. The
states are the same, for the work of the real tokens. TPUs need fixed shapes: use one group there.
"""

from __future__ import annotations

import tensorflow as tf

from mural_tf.encoders.packing import LENGTH_STEP


def stack_ids(ids: list[tf.Tensor]) -> tf.Tensor:
    """Concatenates [B_i, T_i] along the batch, padding with 0 to the largest T; a static shape where all are."""
    widths = [value.shape[1] for value in ids]
    width = tf.reduce_max([tf.shape(value)[1] for value in ids]) if None in widths else max(widths)
    return tf.concat([tf.pad(value, [[0, 0], [0, width - tf.shape(value)[1]]]) for value in ids], axis=0)


def encode_by_length(encoder: tf.keras.Model, tokens: dict, groups: int, training: bool) -> tf.Tensor:
    """Returns `encoder(tokens)`, float32 [B, H], computed in `groups` parts of texts of similar length.

    One group is the plain call, on padding too.

    `tokens`: int32 [B, T] each, with `input_mask` 1 on tokens and 0 on padding, which comes last in every row.
    """
    if groups <= 1:
        return encoder(tokens, training=training)
    if hasattr(encoder, "packed_states"):
        return encoder.packed_states(tokens, groups, training)
    lengths = tf.reduce_sum(tokens["input_mask"], axis=1)  # [B]
    order = tf.argsort(lengths, stable=True)
    count = tf.shape(order)[0]
    states = []
    for group in range(groups):
        rows = order[count * group // groups : count * (group + 1) // groups]
        longest = tf.reduce_max(tf.concat([tf.gather(lengths, rows), [1]], axis=0))  # 1 if there are no rows
        longest = (longest + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP
        states.append(
            encoder({name: tf.gather(ids, rows)[:, :longest] for name, ids in tokens.items()}, training=training)
        )
    return tf.gather(tf.concat(states, axis=0), tf.argsort(order))
