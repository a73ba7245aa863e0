"""What can be asked of anything that encodes images and texts into one space: similarity, zero-shot classification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mural_tf.text.prompts import fill_templates


class Comparisons:
    """Base of `Embedder`; needs `encode_image`, `encode_text` (L2-normalised) and `embedding_size`."""

    def similarity(
        self, images: Iterable | np.ndarray, texts: Sequence[str] | np.ndarray, progress: bool | None = None
    ) -> np.ndarray:
        """Returns the cosine of every image with every text, float32 [N, M] in [-1, 1]; larger is closer.

        Either side may be embeddings already, float [N, D] and L2-normalised: with two matrices of texts (or images)
        it compares texts with texts. `progress` is as in `encode_image`.

        Raises what `encode_image` and `encode_text` raise, and `ValueError` for embeddings of another width.

        >>> red, blue = np.full((2, 48, 64, 3), [[[(250, 0, 0)]], [[(0, 0, 250)]]], np.uint8)
        >>> cosines = embedder.similarity([red, blue], ["something red", "something blue"])
        >>> cosines.shape, cosines.argmax(axis=1)
        ((2, 2), array([0, 1]))
        >>> texts = embedder.encode_text(["something red"])
        >>> np.allclose(embedder.similarity(texts, texts), 1, atol=1e-5)
        True
        """
        images = self._given(images) if _is_matrix(images) else self.encode_image(images, progress=progress)
        texts = self._given(texts) if _is_matrix(texts) else self.encode_text(texts, progress=progress)
        return np.clip(images @ texts.T, -1.0, 1.0)

    def encode_labels(
        self, labels: Sequence[str], templates: Sequence[str] = ("{}",), progress: bool | None = None
    ) -> np.ndarray:
        """Returns one vector a class: the normalised mean of the label's normalised embeddings in all templates.

        Radford et al. (2021), §3.1.4, "prompt ensembling".

        Args:
          labels: names of the classes, in any language.
          templates: texts in which `{}` (or `{c}`) is the label's place.
          progress: as in `encode_text`.

        Returns:
          float32 [C, D], L2-normalised.

        Raises:
          ValueError: no labels, no templates, or a template without a place for the label.

        >>> embedder.encode_labels(["red", "blue"], ["a {} square", "something {}"]).shape == (
        ...     2, embedder.embedding_size)
        True
        """
        prompts = self.encode_text(fill_templates(labels, templates), progress=progress)
        means = prompts.reshape(len(labels), len(templates), -1).mean(axis=1)  # [C, D]
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)

    def classify(
        self,
        images: Iterable | np.ndarray,
        labels: Sequence[str] | np.ndarray,
        templates: Sequence[str] = ("{}",),
        progress: bool | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Zero-shot classification: every image goes to the class whose vector has the largest cosine with it.

        Args:
          images: as in `encode_image`, or their embeddings, float [N, D].
          labels: names of the classes, or what `encode_labels` made of them, float [C, D].
          templates: as in `encode_labels`; unused if `labels` are embeddings.
          progress: as in `encode_image`.

        Returns:
          int64 [N], the place of the best class in `labels`; and the cosines, float32 [N, C].

        Raises what `similarity` and `encode_labels` raise.

        >>> red, blue = np.full((2, 48, 64, 3), [[[(250, 0, 0)]], [[(0, 0, 250)]]], np.uint8)
        >>> labels = ["blue", "red"]
        >>> best, cosines = embedder.classify([red, blue, red], labels, ["a {} square", "something {}"])
        >>> [labels[i] for i in best]
        ['red', 'blue', 'red']
        >>> cosines.shape
        (3, 2)
        """
        classes = labels if _is_matrix(labels) else self.encode_labels(labels, templates, progress)
        cosines = self.similarity(images, classes, progress)
        if not cosines.shape[1]:
            raise ValueError("labels is empty: expected at least one.")
        return cosines.argmax(axis=1), cosines

    def _given(self, embeddings: np.ndarray) -> np.ndarray:
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"Embeddings are {embeddings.shape[1]} wide, those of this model {self.embedding_size}: they are of "
                "another model."
            )
        return embeddings.astype(np.float32, copy=False)


def _is_matrix(values) -> bool:
    """Whether something is embeddings, float [N, D], and not a list of images or texts."""
    return isinstance(values, np.ndarray) and values.ndim == 2 and np.issubdtype(values.dtype, np.floating)
