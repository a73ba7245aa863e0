"""A model in memory as `Embedder`, which takes files, arrays and texts and returns NumPy's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from ml_collections import ConfigDict

from mural_lite.embedder import Embedder, Embeddings, Encoder, Encoders
from mural_lite.pictures import BadImage
from mural_tf.data import images


def embedder_of(
    model: Any,
    tokenizer: Any,
    config: ConfigDict,
    path: str = "",
    step: int | None = None,
    made_texts: Any = None,
) -> Embedder:
    """Wraps a model in memory; later changes of its weights show in later calls.

    Args:
      model: a `DualEncoder`, or another object with its `embed_images`, `embed_texts` and `embedding_size`.
      tokenizer: a `text.tokenizer.Tokenizer`, or a function like its call where there is no prompt.
      config: the model's configuration.
      path, step: where the model comes from, see `Embedder`.
      made_texts: a `models.states.KnownStates`, texts that skip the text tower.
    """
    tower = config.image_tower
    prepared = images.prepared_spec(tower)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.string)])
    def prepare_image(data: tf.Tensor) -> tf.Tensor:
        return images.prepare_image(data, tower)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, *prepared.shape], prepared.dtype)])
    def embed_images(batch: tf.Tensor) -> tf.Tensor:
        return model.embed_images(batch)

    embed_texts, further = _text_functions(model, tokenizer)
    prompted = {}
    if config.vocabulary.prompt:
        without_prompt, further_without_prompt = _text_functions(model, tokenizer.with_prompt(""))
        prompted = {"": without_prompt, **further_without_prompt}
    if made_texts is not None:
        embed_texts = made_texts.with_fallback(embed_texts, model.head_names[0])
        further = {head: made_texts.with_fallback(embed, head) for head, embed in further.items()}
    encoders = Encoders(prepare_image, embed_images, embed_texts, further, prompted)
    return embedder_of_graphs(encoders, model.embedding_size, config, path, step)


def _text_functions(model: Any, tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the function of strings [B] to vectors by the head of captions, and {further head: its function}."""

    def function_of(*head: str) -> Any:  # one name at most; models that are not a `DualEncoder` take no head
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        def embed_texts(texts: tf.Tensor) -> tf.Tensor:
            return model.embed_texts(tokenizer(texts, pad="longest"), *head)

        return embed_texts

    names = getattr(model, "head_names", ())
    return function_of(), {head: function_of(head) for head in names if head != "image_text"}


def embedder_of_graphs(
    encoders: Encoders, embedding_size: int, config: ConfigDict, path: str = "", step: int | None = None
) -> Embedder:
    """Wraps functions of tensors, which take an encoded image, a string scalar; images [B, …]; texts, string [B]."""

    def prepare(data: bytes) -> tf.Tensor:
        try:
            return encoders.prepare_image(tf.constant(data))
        except tf.errors.OpError:
            raise BadImage("it is damaged and does not decode") from None

    def on_lists(encode: Callable[[tf.Tensor], tf.Tensor], join: Callable[..., tf.Tensor] = tf.constant) -> Encoder:
        def encode_list(values: Sequence[Any]) -> Embeddings:
            embeddings: Embeddings = encode(join(values)).numpy()
            return embeddings

        return encode_list

    on_images = on_lists(encoders.embed_images, tf.stack)
    further = {head: on_lists(encode) for head, encode in encoders.text_heads.items()}
    prompted = {head: on_lists(encode) for head, encode in encoders.prompted.items()}
    taking_lists = Encoders(prepare, on_images, on_lists(encoders.embed_texts), further, prompted)
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return Embedder(taking_lists, embedding_size, config, path, step, threads)
