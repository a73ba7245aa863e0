"""PARALLEL-EmbN ([MULE], Kim et al., 2020, after Gella et al., 2017): EmbN with a sentence branch for each language.

    L = w_i2t L_triplet, [MULE] Eq. 3

The image branch is shared; word vectors, their projection and the sentence branch are each language's own.
"""

from __future__ import annotations

from mural_tf.models.embn import EmbN


class ParallelEmbN(EmbN):
    """EmbN with a sentence branch per language."""

    title = "PARALLEL-EmbN: EmbN with a sentence branch for each language (after Gella et al., 2017), MULE's baseline"
    branches = "parallel"
