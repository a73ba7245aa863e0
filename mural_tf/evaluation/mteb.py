"""Our models in mteb (github.com/embeddings-benchmark/mteb), whose image-text and text tasks then run on them.

    import mteb
    from mural_tf.evaluation.mteb import MtebEncoder

    mteb.evaluate(MtebEncoder("workdirs/emoji"), mteb.get_tasks(["XM3600T2IRetrieval"]))

mteb is the extra `mteb`, for Python from 3.11 on; its tasks fetch their data from the Hugging Face Hub.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mural_lite.embedder import Embedder
from mural_lite.errors import UserError, install_extra
from mural_lite.models import open_model

try:
    from mteb.models.abs_encoder import AbsEncoder, get_prompt_name
    from mteb.models.model_meta import ModelMeta, ScoringFunction
except ImportError:
    raise UserError(f"mteb is missing: on Python 3.11 or later {install_extra('mteb')}.") from None


# Names of the prompts of queries and documents, in the order in which Sentence-Transformers looks for them.
PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}


class MtebEncoder(AbsEncoder):
    """An encoder by mteb's `EncoderProtocol`, for tasks with texts, images, or both.

    Args:
      model_name: workdir, export or hf://ORG/NAME.
      revision: the revision that mteb names in its results; None: the training step, where it is known.
      device: ignored, TensorFlow chooses it.
      embedder: a model that is open already.

    `similarity` is the cosine. The model's own prompts precede texts as in Sentence-Transformers: by the task's name or
    type, or for queries and documents. mteb's instructions are left out: no model here was trained with them.
    """

    def __init__(
        self,
        model_name: str,
        revision: str | None = None,
        *,
        device: str | None = None,
        embedder: Embedder | None = None,
    ):
        self.model = embedder or open_model(model_name)
        if not revision and self.model.step is not None:
            revision = f"step {self.model.step}"
        self.mteb_model_meta = ModelMeta.create_empty(
            dict(
                name=f"mural_tf/{pathlib.PurePosixPath(model_name).name}",
                revision=revision or "no step known",
                embed_dim=self.model.embedding_size,
                framework=["TensorFlow"],
                modalities=["image", "text"],
                similarity_fn_name=ScoringFunction.COSINE,
                use_instructions=False,
            )
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[Any]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Returns float32 [N, D], L2-normalised; for items with a text and an image the normalised sum of both vectors.

        Args:
          inputs: batches {"text": strings, "image": Pillow's pictures}, with either or both.
          task_metadata, prompt_type: the task's, which choose the prompt of texts.
          hf_split, hf_subset: the task's; vectors do not depend on them.
          kwargs: mteb's options, such as batch_size, by which it has made the batches.

        Raises:
          UserError: batches without texts and images, such as sounds or videos.
        """
        prompt = self._prompt_name(task_metadata, prompt_type)
        return np.concatenate([self._encode_batch(batch, prompt) for batch in inputs])

    def _prompt_name(self, task_metadata: Any, prompt_type: Any) -> str | None:
        """Returns the name of the prompt before the task's texts, `None` for the model's default."""
        prompts = self.model.prompts
        name = get_prompt_name(prompts, task_metadata, prompt_type)
        if name is None and prompt_type is not None:
            for usual_name in PROMPTS.get(prompt_type.value, ()):
                if usual_name in prompts:
                    return usual_name
        return name

    def _encode_batch(self, batch: Mapping[str, Sequence[Any]], prompt: str | None) -> np.ndarray:
        """Returns the vectors of a batch as `encode` does; `prompt` is the name of the prompt before texts."""
        vectors = []
        if "text" in batch:
            vectors.append(self.model.encode_text(list(batch["text"]), progress=False, prompt=prompt))
        if "image" in batch:
            vectors.append(self.model.encode_image(list(batch["image"]), progress=False))
        if not vectors:
            raise UserError(f"The task has {', '.join(batch)}: this model encodes texts and images.")
        total = np.sum(vectors, axis=0)
        return total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)  # opposite vectors give 0
