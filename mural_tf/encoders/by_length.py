"""Running a text tower without computing on padding, where shapes may change (CPU and GPU).

A batch of texts is as wide as its longest one, and most are far shorter: on captions in many languages more than half
of a padded batch is padding. Sorting the rows by length and running the tower on a few groups, each cut to its own
longest text, gives the same states for the work of the real tokens. TPUs need fixed shapes: use one group there.
"""

from __future__ import annotations

import tensorflow as tf

LENGTH_STEP = 2  # lengths are rounded up to multiples of it: compiled loops are made anew for every shape


def encode_by_length(encoder: tf.keras.Model, tokens: dict, groups: int, training: bool) -> tf.Tensor:
    """Returns `encoder(tokens)`, float32 [B, H], computed in `groups` parts of rows of similar length.

    `tokens`: int32 [B, T] each, with `input_mask` 1 on tokens and 0 on padding, which comes last in every row.
    """
    if groups <= 1:
        return encoder(tokens, training=training)
    if hasattr(encoder, "packed_states"):  # our own BERT
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
