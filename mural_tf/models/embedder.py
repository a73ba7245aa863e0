"""A model in memory as `Embedder`, which takes files, arrays and texts and returns NumPy's arrays."""

from __future__ import annotations

import functools
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
    """Returns an `Embedder` of a model in memory; later changes of the model's weights show in later calls.

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

    embed_texts, text_heads = _text_functions(model, tokenizer)
    prompted = {}  # {head: the function of texts that begin with a prompt}; "": the first head
    if config.vocabulary.prompt:
        without_prompt, heads_without_prompt = _text_functions(model, tokenizer.with_prompt(""))
        prompted = {"": without_prompt, **heads_without_prompt}
    if made_texts is not None:
        embed_texts = made_texts.with_fallback(embed_texts, model.head_names[0])
        text_heads = {head: made_texts.with_fallback(embed, head) for head, embed in text_heads.items()}
    encoders = Encoders(prepare_image, embed_images, embed_texts, text_heads, prompted)
    return embedder_of_graphs(encoders, model.embedding_size, config, path, step)


def _text_functions(model: Any, tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    """Returns a function of texts, string [B], to vectors [B, D] by the first head, and {head: its function}.

    The dictionary leaves out "image_text", which is the first head if a model has it.
    """

    def on_strings(embed_tokens: Callable[[Any], tf.Tensor]) -> Any:
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        def embed_texts(texts: tf.Tensor) -> tf.Tensor:
            return embed_tokens(tokenizer(texts, pad="longest"))

        return embed_texts

    text_heads = {}
    for head in getattr(model, "head_names", ()):
        if head != "image_text":
            text_heads[head] = on_strings(functools.partial(model.embed_texts, head=head))
    return on_strings(model.embed_texts), text_heads


def embedder_of_graphs(
    encoders: Encoders, embedding_size: int, config: ConfigDict, path: str = "", step: int | None = None
) -> Embedder:
    """Returns an `Embedder` of lists and arrays, by functions of tensors.

    Args:
      encoders: `prepare_image` takes an encoded image, a string scalar, `embed_images` a batch of prepared images
        [B, …], and every other function texts, string [B].
      embedding_size, config, path, step: as `Embedder` takes them.
    """

    def prepare(data: bytes) -> tf.Tensor:
        try:
            return encoders.prepare_image(tf.constant(data))
        except tf.errors.OpError:
            raise BadImage("it is damaged and does not decode") from None

    def on_lists(encode: Callable[[tf.Tensor], tf.Tensor], join: Callable[..., tf.Tensor] = tf.constant) -> Encoder:
        """Returns `encode` as a function of a list, which `join` makes a tensor, to an array."""

        def encode_list(values: Sequence[Any]) -> Embeddings:
            embeddings: Embeddings = encode(join(values)).numpy()
            return embeddings

        return encode_list

    on_images = on_lists(encoders.embed_images, tf.stack)
    text_heads = {head: on_lists(encode) for head, encode in encoders.text_heads.items()}
    prompted = {head: on_lists(encode) for head, encode in encoders.prompted.items()}
    taking_lists = Encoders(prepare, on_images, on_lists(encoders.embed_texts), text_heads, prompted)
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return Embedder(taking_lists, embedding_size, config, path, step, threads)
