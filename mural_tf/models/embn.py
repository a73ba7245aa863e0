"""EmbN ([MULE], Kim et al., 2020, after Wang et al., 2019): MULE's baseline, image-sentence matching with triplets.

    L = w_i2t L_triplet, [MULE] Eq. 3

It has MULE's image branch and, per language, word vectors and their projection. EmbN is trained with one language in
`text_tower.languages`, a model per language; with several it is the row "MULE EmbN" of the paper's tables, one
sentence branch for all and no other loss.
"""

from __future__ import annotations

from typing import ClassVar

import tensorflow as tf

from mural_lite.errors import UserError
from mural_tf.backend import keras
from mural_tf.data.streams.image_groups import ImageGroups
from mural_tf.encoders.word_vectors import vectors_of_vocabulary
from mural_tf.losses.mule import DISTANCES, image_sentence_loss
from mural_tf.models.dual_encoder import DualEncoder, Embedding, Task


class Columns(keras.layers.Layer):
    """A head without weights: takes the columns from `first` to before `last` of a tower's output, [B, C]."""

    def __init__(self, first: int, last: int, **options):
        super().__init__(**options)
        self.first = first
        self.last = last

    def call(self, states):
        return states[:, self.first : self.last]


class EmbN(DualEncoder):
    """Image-sentence matching with triplets.

    Batches hold `image` and `image_id` of I images, and of `method.captions_per_image` captions each `caption` (tokens)
    and `caption_language_id` (-1: no caption in this place).
    """

    title = "EmbN, an embedding network with triplets for one language (Wang et al., 2019), as MULE's baseline"
    also_reads = ("caption_language_id",)
    fields = dict(
        **ImageGroups.fields,
        distance="euclidean",  # of unit vectors, as the released code; or "cosine", 1 - cos, as the paper
        margin=0.05,  # in the unit of the distance; the released code's, the paper gives none
        top=10,  # most violated constraints per anchor [MULE]
        # Weights of [sentence, its image, other images] and of [sentence, another sentence of its image, others]: the
        # released code's; (1.0, 0.0) in Eq. 3.
        factors=(1.5, 0.05),
    )
    embeddings = {"image": Embedding("image"), "caption": Embedding("caption", head="image_text")}
    tasks = {"image_text": Task("image_groups", ("image", "caption"))}
    branches: ClassVar[str] = "shared"  # the value that `text_tower.language_branches` must have

    def __init__(self, image_encoder, text_encoder, config, **kwargs):
        super().__init__(image_encoder, text_encoder, config, **kwargs)
        self._check()

    @classmethod
    def has_image_text_head(cls):
        return False  # `Columns` has no weights: the text tower's own output is compared with images

    def build_head(self, name):  # the tower's output begins with the sentence s, of `embedding_size` numbers
        return Columns(0, self.embedding_size, name=f"{name}_head", dtype="float32")

    @property
    def triplet_arguments(self) -> dict:
        """{name: value} of the arguments that all triplet losses share."""
        return dict(margin=self.options.margin, distance=self.options.distance, top=self.options.top)

    def image_text_loss(self, image, caption, ids):
        """Returns L_triplet of sentences and their images, a float32 scalar.

        Args:
          image, caption: `Rows` [I, D] and [I * captions_per_image, D]; the captions of an image are in succession.
          ids: {"image_id": integers [I], "caption_language_id": integers [I * captions_per_image]}.
        """
        owners = tf.range(caption.total) // self.options.captions_per_image  # the row of each sentence's image
        return image_sentence_loss(
            image.values,
            caption,
            owners,
            ids["image_id"],
            ids["caption_language_id"],
            factors=self.options.factors,
            **self.triplet_arguments,
        )

    def begin(self, tokenizer, restored):
        """Sets the word vectors of `text_tower.word_vectors`, and prints how many; not if weights were restored."""
        files = self.text_tower.word_vectors
        if restored or not files:
            return
        table = self.text_encoder.get_layer("word_vectors").embeddings
        vectors, counts = vectors_of_vocabulary(files, tokenizer.vocabulary, tokenizer.languages, table.shape[1])
        values = table.numpy()
        for word_id, vector in vectors.items():
            values[word_id] = vector
        table.assign(values)
        summary = ", ".join(f"{language} {with_vector} of {words}" for language, (with_vector, words) in counts.items())
        print(f"Words with vectors in {files}: {summary}; the others start at random.")

    def _check(self) -> None:
        """Raises `UserError` for a tower or fields that the method cannot have."""
        tower = self.text_tower
        options = self.options
        name = type(self).__name__
        if tower.name != "words" or tower.language_branches != self.branches:
            raise UserError(
                f"{name} needs text_tower.name='words' and text_tower.language_branches={self.branches!r}, got "
                f"{tower.name!r} and {tower.language_branches!r}."
            )
        if tower.projection != self.embedding_size:
            raise UserError(f"text_tower.projection={tower.projection} must be embedding_size={self.embedding_size}.")
        if options.captions_per_image < 1:
            raise UserError(f"method.captions_per_image={options.captions_per_image}: {name} needs 1 or more.")
        if len(options.factors) != 2:
            raise UserError(f"method.factors={options.factors}: expected two numbers, such as 1.5,0.05.")
        if options.distance not in DISTANCES or options.top < 1 or options.margin < 0:
            raise UserError(
                f"method.distance={options.distance!r}, method.top={options.top}, method.margin={options.margin}: "
                f"expected {' or '.join(DISTANCES)}, 1 or more, and 0 or more."
            )
