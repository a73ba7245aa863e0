"""`Embedder`: a trained model as two functions, image -> vector and sentence -> vector.

A workdir, an export, its TF-Hub modules, its LiteRT files, Hugging Face's ALIGN (all by `mural_tf.load`) and a model in
memory give the same `Embedder`; evaluators and search know nothing else. The class knows only arrays, so that the
LiteRT files are used without TensorFlow. The tests run the examples below.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Union, overload

import numpy as np
import numpy.typing as npt
from ml_collections import ConfigDict

from mural_lite.config import has_images, prompts_of, takes_features, takes_languages
from mural_lite.errors import UserError

if TYPE_CHECKING:
    import PIL.Image
    import tensorflow as tf
    from typing_extensions import TypeIs

PLACES = ("{}", "{c}")  # marks for the label in a template: in CLIP's files, and in CLIP_benchmark's
TOKENS = 4096  # tokens of the texts in one call of the model: memory grows with them
LONG_LIST = 1000  # items from which on a progress bar is shown, unless the caller decides

# A path, an open file, an encoded image, pixels [H, W, 3], [H, W, 4] or [H, W], or a picture of Pillow's.
Image = Union[str, "os.PathLike[str]", BinaryIO, bytes, npt.NDArray[np.uint8], "tf.Tensor", "PIL.Image.Image"]
Embeddings = npt.NDArray[np.float32]  # [N, D], L2-normalised
Encoder = Callable[[Sequence[Any]], Embeddings]  # prepared images, or texts in UTF-8, [B] -> [B, D]


def fill_templates(labels: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Returns C * T prompts: every label in every template, label by label.

    Raises `ValueError` for an empty list or a template that has no place for the label, and `TypeError` for a single
    string instead of a list.

    >>> fill_templates(["cat", "red fox"], ["{}", "a photo of a {}."])
    ['cat', 'a photo of a cat.', 'red fox', 'a photo of a red fox.']
    """
    for name, texts in (("label", labels), ("template", templates)):
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{name}s must be a list of str; wrap a single one: [{name}].")
        if len(texts) == 0:
            raise ValueError(f"{name}s is empty: expected at least one.")
    slots = [_label_slot(template) for template in templates]
    prompts = []
    for label in labels:
        for template, slot in zip(templates, slots):
            prompts.append(template.replace(slot, label))  # not str.format: either may hold other braces
    return prompts


def _label_slot(template: str) -> str:
    """Returns the mark that the label replaces in a template, "{}" or "{c}"; raises `ValueError` without a mark."""
    for slot in PLACES:
        if slot in template:
            return slot
    raise ValueError(f"The template {template!r} has no place for the label: write {{}}.")


def class_embeddings(prompts: Embeddings, templates: int) -> Embeddings:
    """Returns the normalised mean of each class's embeddings, float32 [C, D] (CLIP, §3.1.4, "prompt ensembling").

    `prompts`: embeddings of the prompts of `fill_templates`, [C * T, D], L2-normalised; `templates`: T, their number.
    """
    means: Embeddings = prompts.reshape(-1, templates, prompts.shape[1]).mean(axis=1)  # [C, D]
    lengths = np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)  # a mean of 0 stays 0
    normalised: Embeddings = (means / lengths).astype(np.float32, copy=False)
    return normalised


@dataclasses.dataclass(frozen=True)
class Encoders:
    """The functions of an `Embedder`."""

    prepare_image: Callable[[Any], Any]  # JPEG or PNG bytes -> a prepared image; raises `BadImage`
    embed_images: Callable[[Any], Any]  # list of prepared images, [B] -> float32 [B, D]
    embed_texts: Callable[[Any], Any]  # list of texts, bytes in UTF-8, [B] -> float32 [B, D]
    # {name: a function like `embed_texts`} for further heads of the text tower; MURAL's is "text_text".
    text_heads: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    # {head: a function like `embed_texts` that puts no prompt before texts} for a model that puts a prompt before every
    # text, to encode texts with another prompt; "" is the image-text head.
    prompted: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)


class Reading(NamedTuple):
    """How well a tokenizer reads some texts."""

    unknown: float  # share of the texts' pieces that are unknown, 0..1
    cut: float  # share of the texts that have more pieces than fit, 0..1
    room: int  # how many pieces of a text fit


class Embedder:
    """Encodes images and texts to L2-normalised float32 vectors; made by `open_model`.

    Args:
      encoders: the model's functions.
      embedding_size: D.
      config: the configuration the model was trained with.
      path: the model's folder, "" for a model in memory.
      step: the training step of its weights, None if unknown.
      threads: number of threads that decode images; 0: one per core.
    """

    def __init__(
        self,
        encoders: Encoders,
        embedding_size: int,
        config: ConfigDict,
        path: str = "",
        step: int | None = None,
        threads: int = 0,
    ) -> None:
        self.embedding_size = embedding_size
        self.config = config
        self.path = path
        self.step = step
        self.text_heads: dict[str, Encoder] = dict(encoders.text_heads)
        self.original: Any = None  # a `fingerprint.Original`: the model that smaller encoders were made of
        self.encoder = ""  # the name of smaller encoders, see `models.encoder_of`
        self.reading: Callable[[Sequence[str]], Reading] | None = None  # how smaller encoders read texts
        self.reload: Callable[[], Embedder] | None = None  # loads it again; None for a model in memory
        self.kept_alive: Any = None  # an export's text encoder, since its signatures do not keep the variables alive
        self._encoders = encoders
        self._embed_texts: Encoder = encoders.embed_texts
        self._head = ""
        self._threads = threads or os.cpu_count() or 1

    def __repr__(self) -> str:
        return f"Embedder(path={self.path!r}, step={self.step}, embedding_size={self.embedding_size})"

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError`; for names of other libraries' methods the message says how they are called here."""
        if name in _ELSEWHERE:
            raise AttributeError(f"Embedder has no {name!r}: {_ELSEWHERE[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __copy__(self) -> Embedder:
        """Returns a shallow copy. Without this method `copy.copy` would load the model again, by `__reduce__`."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[Callable[..., Embedder], tuple[object, str]]:
        """Returns (function, arguments) by which pickle and deepcopy load it again from its folder."""
        if self.reload is None:
            raise TypeError("This Embedder is of a model in memory: save the model and load it, to pickle or copy it.")
        return _reload, (self.reload, self._head)

    @property
    def takes_languages(self) -> bool:
        """Whether `encode_text` does better if it gets the language."""
        return bool(takes_languages(self.config.text_tower))

    def with_text_head(self, name: str) -> Embedder:
        """Returns an embedder like this one whose `encode_text` uses another head of the text tower.

        Raises `UserError` if the model has no head of this name. MURAL's workdirs and exports have "text_text"; TF-Hub
        modules hold the image-text head only.
        """
        if name not in self.text_heads:
            names = ", ".join(self.text_heads) or "none"
            raise UserError(f"{self.path or 'The model'} has no text head {name!r}; besides image_text it has {names}.")
        other = copy.copy(self)
        other._embed_texts = self.text_heads[name]
        other._head = name
        return other

    @overload
    def encode_image(
        self,
        images: Image | Iterable[Image],
        batch_size: int = ...,
        progress: bool | None = ...,
        on_error: Literal["raise"] = ...,
    ) -> Embeddings: ...

    @overload
    def encode_image(
        self,
        images: Image | Iterable[Image],
        batch_size: int = ...,
        progress: bool | None = ...,
        *,
        on_error: Literal["skip"],
    ) -> tuple[Embeddings, npt.NDArray[np.int64]]: ...

    def encode_image(
        self,
        images: Image | Iterable[Image],
        batch_size: int = 64,
        progress: bool | None = None,
        on_error: str = "raise",
    ) -> Embeddings | tuple[Embeddings, npt.NDArray[np.int64]]:
        """Encodes images, resized and cropped as in evaluation.

        Args:
          images: a single image, an array [N, H, W, 3], or any iterable of images, which is read a few batches ahead.
            An image is a path, encoded bytes (JPEG, PNG, WebP, AVIF, TIFF or another format of Pillow's), an open file,
            a uint8 array or tensor [H, W, 3], [H, W, 4] (transparent pixels on white) or [H, W], or Pillow's picture.
          batch_size: images per call of the model.
          progress: whether to show a progress bar; by default for 1,000 images and more.
          on_error: "raise" or "skip" images that cannot be read.

        Returns:
          float32 [N, D], L2-normalised, or [D] for a single image; with on_error="skip" a pair: [K, D] for the readable
          images and their int64 [K] places in `images`.

        Raises:
          UserError: an unreadable image (unless skipped), named; embeddings that are not finite; or a model without
            an image tower.
          TypeError: something that is not an image.
          ValueError: `batch_size` below 1, another `on_error`, or "skip" for a single image.

        >>> red, blue = np.full((2, 48, 64, 3), [[[(250, 0, 0)]], [[(0, 0, 250)]]], np.uint8)
        >>> images = embedder.encode_image([red, blue])
        >>> images.dtype, images.shape == (2, embedder.embedding_size)
        (dtype('float32'), True)
        >>> np.allclose(embedder.encode_image(blue), images[1], atol=1e-6)
        True
        >>> images, kept = embedder.encode_image([red, b"not an image", blue], on_error="skip")
        >>> kept
        array([0, 2])
        """
        if not has_images(self.config.image_tower):
            raise UserError(f"The model {self.path} has no image tower (image_tower.name=none): only texts.")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}.")
        _check_batch_size(batch_size)
        images = _as_array(images)
        if _is_image(images):
            if on_error == "skip":
                raise ValueError("on_error='skip' is for several images.")
            single: Embeddings = self.encode_image([images], batch_size, progress)[0]
            return single
        if not isinstance(images, Iterable):
            raise TypeError(f"encode_image takes images or one image ({_IMAGES}), got {images!r}.")
        with _bar(images, "images", progress) as bar:
            blocks, readable = self._embed_readable(images, batch_size, bar, may_skip=on_error == "skip")
        embeddings = self._joined(blocks, "images")
        if on_error == "skip":
            return embeddings, np.array(readable, np.int64)
        return embeddings

    def _embed_readable(
        self, images: Iterable[Image], batch_size: int, bar: Any, may_skip: bool
    ) -> tuple[list[Embeddings], list[int]]:
        """Returns the embeddings of the readable images, float32 [B, D] per batch, and their indices in `images`.

        `bar`: its `update` is called per image. Without `may_skip` the first unreadable image raises `UserError`.
        """
        readable: list[int] = []
        blocks: list[Embeddings] = []
        batch: list[object] = []
        for index, image, problem in self._prepared(images, 2 * batch_size):
            bar.update()
            if problem and not may_skip:
                raise UserError(problem)
            if problem:
                continue
            readable.append(index)
            batch.append(image)
            if len(batch) == batch_size:
                blocks.append(self._encoders.embed_images(batch))
                batch = []
        if batch:
            blocks.append(self._encoders.embed_images(batch))
        return blocks, readable

    @property
    def prompts(self) -> dict[str, str]:
        """{name: text} of the model's prompts; `config.vocabulary.prompt` precedes texts where no prompt is named."""
        return prompts_of(self.config)

    def encode_text(
        self,
        texts: str | Iterable[str],
        batch_size: int = 64,
        progress: bool | None = None,
        language: str = "",
        prompt: str | None = None,
    ) -> Embeddings:
        """Encodes texts, in any language or script, with the image-text head.

        Equal texts get equal vectors bit for bit. Batches hold texts of similar length, so that little is padding.

        Args:
          texts: any iterable of strings, the empty one too, or a tensor of them; or a single string.
          batch_size: the most texts per call of the model; fewer if they are long, see `TOKENS`.
          progress: whether to show a progress bar; by default for 1,000 different texts and more.
          language: the language of the texts, as the model's configuration names it, "de". Only models with word
            vectors per language (MULE) use it; without it they take the likeliest language.
          prompt: the name of one of the model's `prompts`, which precedes each text in place of the default prompt;
            "" for no prompt at all.

        Returns:
          float32 [N, D], L2-normalised, in the order of `texts`; [D] for a single string.

        Raises:
          UserError: embeddings that are not finite, or a prompt that the model does not have.
          TypeError: something that is not a string.
          ValueError: `batch_size` below 1.

        >>> texts = embedder.encode_text(["a red balloon", "ein roter Ballon", "ลูกโป่งสีแดง"])
        >>> texts.dtype, texts.shape == (3, embedder.embedding_size)
        (dtype('float32'), True)
        >>> np.allclose(np.linalg.norm(texts, axis=1), 1, atol=1e-5)
        True
        >>> np.array_equal(embedder.encode_text("a red balloon"), texts[0])
        True
        """
        texts = _as_array(texts)
        if isinstance(texts, str):
            single: Embeddings = self.encode_text([texts], batch_size, progress, language, prompt)[0]
            return single
        if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
            raise TypeError(f"encode_text takes strings or one string, got {texts!r}.")
        _check_batch_size(batch_size)
        texts = list(texts)  # a generator can be read once
        _check_strings(texts)
        embed_texts = self._embed_texts
        prefix = ""
        if prompt is not None:
            embed_texts, prefix = self._with_prompt(prompt)
        elif language and self.takes_languages:
            prefix = f"<{language}> "
        encoded = [(prefix + text).encode("utf-8", "replace") for text in texts]
        unique = sorted(set(encoded), key=lambda text: (len(text), text))  # equal texts are encoded once
        blocks = []
        with _bar(unique, "texts", progress) as bar:
            for batch in _batches(unique, batch_size, int(self.config.text_tower.max_length)):
                blocks.append(embed_texts(batch))
                bar.update(len(batch))
        embeddings = self._joined(blocks, "texts")
        rows = {text: row for row, text in enumerate(unique)}
        return embeddings[[rows[text] for text in encoded]]

    def _with_prompt(self, name: str) -> tuple[Encoder, str]:
        """Returns (encoder, prefix): the encoder, given prefix + text, embeds the text with the prompt of this name.

        "": without a prompt. Raises `UserError` for an unknown name, or if the model takes only its default prompt.
        """
        prompts = self.prompts
        default_prompt = self.config.vocabulary.prompt
        if name and name not in prompts:
            names = ", ".join(prompts) or "none at all (vocabulary.prompts)"
            raise UserError(f"The model {self.path} has no prompt {name!r}: expected one of {names}.")
        text = prompts.get(name, "")
        if text.startswith(default_prompt):  # `_embed_texts` puts the default prompt before
            return self._embed_texts, text.removeprefix(default_prompt)
        if self._head not in self._encoders.prompted:
            raise UserError(
                f"The model {self.path} puts {default_prompt!r} before every text, and this form of it takes no other "
                f"prompt: expected a workdir or an export's encoders for the prompt {name!r}."
            )
        return self._encoders.prompted[self._head], text

    def similarity(
        self,
        images: Image | Iterable[Image] | Embeddings,
        texts: str | Iterable[str] | Embeddings,
        progress: bool | None = None,
    ) -> Embeddings:
        """Returns the cosine of every image with every text, float32 [N, M] in [-1, 1]; larger is closer.

        Either side may be embeddings already, float [N, D] and L2-normalised, so that texts can be compared with texts,
        or images with images. A single image or text makes N or M 1. `progress` is as in `encode_image`.

        Raises the errors of `encode_image` and `encode_text`, and `ValueError` for embeddings of another width.

        >>> red, blue = np.full((2, 48, 64, 3), [[[(250, 0, 0)]], [[(0, 0, 250)]]], np.uint8)
        >>> cosines = embedder.similarity([red, blue], ["something red", "something blue"])
        >>> cosines.shape, cosines.argmax(axis=1)
        ((2, 2), array([0, 1]))
        >>> texts = embedder.encode_text(["something red"])
        >>> np.allclose(embedder.similarity(texts, texts), 1, atol=1e-5)
        True
        """
        if _is_matrix(images):
            image_vectors = self._checked(images)
        else:
            image_vectors = self.encode_image(images, progress=progress)
        if _is_matrix(texts):
            text_vectors = self._checked(texts)
        else:
            text_vectors = self.encode_text(texts, progress=progress)
        products = np.atleast_2d(image_vectors) @ np.atleast_2d(text_vectors).T  # [N, M]
        cosines: Embeddings = np.clip(products, -1.0, 1.0)  # rounding may lead a little beyond
        return cosines

    def search(
        self,
        images: Iterable[Image] | Embeddings,
        texts: str | Iterable[str] | Embeddings,
        k: int = 10,
        progress: bool | None = None,
    ) -> tuple[npt.NDArray[np.int64], Embeddings]:
        """Finds the k images that are closest to each text; `mural_tf search` and its indexes are for many images.

        Args:
          images, texts: as in `similarity`; queries may be embeddings of images, too.
          k: number of images per text, at least 1; all images if there are fewer.
          progress: as in `encode_image`.

        Returns:
          int64 [M, k], places in `images`, the closest first, equally close images in their order; and their cosines,
          float32 [M, k].

        Raises the errors of `similarity`, and `ValueError` for a `k` below 1.

        >>> red, blue = np.full((2, 48, 64, 3), [[[(250, 0, 0)]], [[(0, 0, 250)]]], np.uint8)
        >>> places, cosines = embedder.search([red, blue], ["something blue", "something red"], k=1)
        >>> places.tolist(), cosines.shape
        ([[1], [0]], (2, 1))
        """
        if k < 1:
            raise ValueError(f"k is {k}: expected at least 1.")
        cosines = self.similarity(images, texts, progress).T  # [M, N]
        rows: npt.NDArray[np.int64] = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        closest: Embeddings = np.take_along_axis(cosines, rows, axis=1)
        return rows, closest

    def encode_labels(
        self, labels: Sequence[str], templates: Sequence[str] = ("{}",), progress: bool | None = None
    ) -> Embeddings:
        """Returns one vector for each class: `class_embeddings` of its label in all templates.

        Args:
          labels: names of the classes, in any language.
          templates: texts in which the label replaces `{}` (or `{c}`).
          progress: as in `encode_text`.

        Returns:
          float32 [C, D], L2-normalised.

        Raises the errors of `fill_templates` and of `encode_text`.

        >>> embedder.encode_labels(["red", "blue"], ["a {} square", "something {}"]).shape == (
        ...     2, embedder.embedding_size)
        True
        """
        prompts = self.encode_text(fill_templates(labels, templates), progress=progress)
        return class_embeddings(prompts, len(templates))

    def classify(
        self,
        images: Iterable[Image] | Embeddings,
        labels: Sequence[str] | Embeddings,
        templates: Sequence[str] = ("{}",),
        progress: bool | None = None,
    ) -> tuple[npt.NDArray[np.int64], Embeddings]:
        """Finds the class whose vector has the largest cosine with each image (zero-shot classification).

        Args:
          images: as in `encode_image`, or their embeddings, float [N, D].
          labels: names of the classes, or their vectors from `encode_labels`, float [C, D].
          templates: as in `encode_labels`; unused if `labels` are embeddings.
          progress: as in `encode_image`.

        Returns:
          int64 [N], the index of each image's class in `labels`; and the cosines, float32 [N, C].

        Raises the errors of `similarity` and `encode_labels`, and `ValueError` for vectors of no class.

        >>> red, blue = np.full((2, 48, 64, 3), [[[(250, 0, 0)]], [[(0, 0, 250)]]], np.uint8)
        >>> labels = ["blue", "red"]
        >>> best, cosines = embedder.classify([red, blue, red], labels, ["a {} square", "something {}"])
        >>> [labels[i] for i in best]
        ['red', 'blue', 'red']
        >>> cosines.shape
        (3, 2)
        """
        if _is_matrix(labels):
            classes = labels
        else:
            classes = self.encode_labels(labels, templates, progress)
        cosines = self.similarity(images, classes, progress)
        if not cosines.shape[1]:
            raise ValueError("labels is empty: expected at least one.")
        best: npt.NDArray[np.int64] = cosines.argmax(axis=1)
        return best, cosines

    def _prepared(self, images: Iterable[Image], ahead: int) -> Iterator[tuple[int, object, str]]:
        """Yields (index, prepared image, "") or (index, None, problem) for each image, in order.

        Threads decode up to `ahead` images in advance.
        """
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            waiting: collections.deque[tuple[int, concurrent.futures.Future[tuple[object, str]]]] = collections.deque()
            try:
                for index, image in enumerate(images):
                    waiting.append((index, pool.submit(self._prepare, image, index)))
                    if len(waiting) > ahead:
                        first_index, future = waiting.popleft()
                        yield first_index, *future.result()
                for index, future in waiting:
                    yield index, *future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _prepare(self, image: Image, index: int) -> tuple[object, str]:
        """Returns (prepared image, "") or (None, the problem); the problem names the image, by `index` if need be."""
        from mural_lite import pictures  # Pillow: here, because texts do without

        name = _image_name(image, index)
        try:
            image = _as_pixels(image)
            if not isinstance(image, np.ndarray):  # a path, an open file or bytes
                data = _encoded(image, name)
                if not takes_features(self.config.image_tower):
                    data = pictures.for_the_encoder(data)
            elif image.dtype == np.uint8 and image.ndim == 3 and image.shape[-1] == 3:
                data = pictures.encode_png(image)
            else:
                return None, f"{name}: expected uint8 [H, W, 3], got {image.dtype} {list(image.shape)}."
            return self._encoders.prepare_image(data), ""
        except OSError as error:
            return None, f"{name} cannot be read: {error.strerror or error}."
        except pictures.BadImage as error:
            return None, f"{name} cannot be used: {error}."

    def _joined(self, blocks: list[Embeddings], unit: str) -> Embeddings:
        """Returns the rows of all blocks of "images" or "texts", [N, D]; raises `UserError` if a row is not finite."""
        no_rows = np.zeros((0, self.embedding_size), np.float32)  # because NumPy joins at least one array
        embeddings: Embeddings = np.concatenate([no_rows, *blocks])
        is_finite = np.isfinite(embeddings).all(axis=1)
        if not is_finite.all():
            raise UserError(
                f"The model {self.path} maps {np.count_nonzero(~is_finite)} of {len(embeddings)} {unit} to NaN or "
                "infinity: its training diverged."
            )
        return embeddings

    def _checked(self, embeddings: Embeddings) -> Embeddings:
        """Returns a caller's embeddings [N, D] as float32; raises `ValueError` if they cannot be this model's."""
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"Embeddings are {embeddings.shape[1]} wide, this model's {self.embedding_size}: they are of "
                "another model."
            )
        if not np.isfinite(embeddings).all():
            raise ValueError("Embeddings hold NaN or infinity: they have no cosine; leave these rows out.")
        return embeddings.astype(np.float32, copy=False)


_IMAGES = "a path, an open file, encoded bytes, uint8 [H, W, 3] or a picture of Pillow's"
_ELSEWHERE = {  # methods of other libraries -> how they are called here
    "encode": "encode_text and encode_image give normalised float32 arrays (batch_size=, progress=).",
    "encode_texts": "it is encode_text.",
    "encode_images": "it is encode_image.",
    "get_text_features": "it is encode_text.",
    "get_image_features": "it is encode_image.",
}


def _reload(load: Callable[[], Embedder], head: str) -> Embedder:
    """Returns a loaded model's `Embedder` with a text head, "" for the image-text head."""
    embedder = load()
    if not head:
        return embedder
    return embedder.with_text_head(head)


def _image_name(image: object, index: int) -> str:
    """Returns what messages call an image: its path, the name of its open file, or its number."""
    if isinstance(image, (str, os.PathLike)):
        return os.fspath(image)
    name = f"Image {index}"
    if hasattr(image, "read"):
        name = str(getattr(image, "name", name))
    return name


def _as_pixels(image: Any) -> Any:
    """Returns an array, tensor or Pillow's picture as an array, grey or transparent as RGB; anything else unchanged."""
    import PIL.Image

    from mural_lite import pictures

    image = _as_array(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        if image.ndim == 2 or (image.ndim == 3 and image.shape[-1] == 4):
            image = PIL.Image.fromarray(image)
    if isinstance(image, PIL.Image.Image):
        return np.asarray(pictures.upright(image))
    return image


def _encoded(image: Any, name: str) -> bytes:
    """Returns the bytes of an encoded image, an open file or a path; raises `TypeError` for other types and text."""
    from mural_lite import pictures

    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, os.PathLike)):
        return pictures.read_file(image)
    if not hasattr(image, "read"):
        raise TypeError(f"{name} is {image!r}, of type {type(image).__name__}; expected {_IMAGES}.")
    data = image.read()
    if not isinstance(data, bytes):
        raise TypeError(f"{name} is a file that gives text: open it with mode 'rb'.")
    return data


def _as_array(value: Any) -> Any:
    """Returns a tensor as an array, or as str or a list of str if it holds strings; anything else unchanged."""
    if not (hasattr(value, "numpy") and hasattr(value, "dtype")):
        return value
    array = value.numpy()
    if isinstance(array, bytes):
        return array.decode("utf-8", "replace")
    if array.dtype != object:
        return array
    return [text.decode("utf-8", "replace") for text in array.ravel()]


def _check_batch_size(batch_size: int) -> None:
    """Raises `ValueError` for a batch size below 1."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: expected at least 1.")


def _check_strings(texts: Sequence[object]) -> None:
    """Raises `TypeError`, with its number from 0, for the first of `texts` that is not a string."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"encode_text takes strings: number {number} is {text!r}, of type {type(text).__name__}.")


def _is_image(value: object) -> TypeIs[Image]:
    """Whether something is a single image, and not several."""
    import PIL.Image

    if isinstance(value, np.ndarray):
        is_color = value.ndim == 3 and value.shape[-1] in (3, 4)
        is_grey = value.ndim == 2 and value.dtype == np.uint8
        return is_color or is_grey
    return isinstance(value, (str, bytes, os.PathLike, PIL.Image.Image)) or hasattr(value, "read")


def _batches(texts: Sequence[bytes], batch_size: int, max_length: int) -> Iterator[Sequence[bytes]]:
    """Yields texts, sorted by length, in batches of at most `batch_size` texts and `TOKENS` tokens with padding.

    A text of more than `max_length` tokens is cut.
    """
    batch: list[bytes] = []
    for text in texts:
        most_tokens = min(len(text) + 2, max_length)  # one per byte, and two for start and end
        if batch and (len(batch) == batch_size or (len(batch) + 1) * most_tokens > TOKENS):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def _bar(items: Iterable[object], unit: str, progress: bool | None) -> contextlib.AbstractContextManager[Any]:
    """Gives a progress bar, or an object whose `update` does nothing; `progress` is as in `encode_image`."""
    total = len(items) if isinstance(items, Sized) else None
    if progress is None:
        progress = total is not None and total >= LONG_LIST
    if not progress:
        return contextlib.nullcontext(types.SimpleNamespace(update=lambda count=1: None))
    from mural_lite.progress import tqdm  # here, because a question shows no bar

    bar: contextlib.AbstractContextManager[Any] = tqdm(total=total, desc=f"Encoding {unit}", unit=f" {unit}")
    return bar


def _is_matrix(values: object) -> TypeIs[Embeddings]:
    """Whether an argument holds embeddings, float [N, D], rather than images or texts."""
    return isinstance(values, np.ndarray) and values.ndim == 2 and np.issubdtype(values.dtype, np.floating)
