"""Image-text retrieval on any image-text TFRecords, per language: the protocol of `mural_tf.evaluation.pool`."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence

from mural_tf.config import ConfigurationError, base_config
from mural_tf.data import records
from mural_tf.evaluation.pool import CaptionedImages, measure_pool
from mural_tf.evaluation.result import Evaluation

__all__ = ["Evaluation", "evaluate_retrieval", "measure_retrieval", "read_pool"]


def evaluate_retrieval(
    embedder,
    data_dir: str | pathlib.Path,
    split: str,
    languages: Sequence[str] | None = None,
    batch_size: int = 128,
    name: str = "retrieval",
) -> dict[str, float]:
    """Returns the numbers of `measure_retrieval`: recalls in percent, ranks from 1.

    Keys: `<name>/<language>/image_to_text/recall@1`, `@5`, `@10`, `.../mean_rank`, `.../median_rank`, the same for
    `text_to_image`, `<name>/<language>/mean_recall`, `<name>/<group>/mean_recall` and `<name>/all/mean_recall`.
    """
    return measure_retrieval(embedder, data_dir, split, languages, batch_size, name).metrics


def measure_retrieval(
    embedder,
    data_dir: str | pathlib.Path,
    split: str,
    languages: Sequence[str] | None = None,
    batch_size: int = 128,
    name: str = "retrieval",
    progress: bool = False,
    max_missing: float = 1.0,
) -> Evaluation:
    """Runs the protocol on one split of a folder of records.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`.
      data_dir: folder of image-text TFRecords; `language_groups` of its dataset.json, if there, replace the
        configuration's groups.
      split: which records.
      languages: evaluate these only; None: all that the split holds.
      batch_size: images, or texts, per call of the model.
      name: first part of the keys; the emoji benchmark is this protocol under the name "emoji".
      progress: whether to show progress bars.
      max_missing: the largest share of images that may not decode, 0..1.

    Raises:
      ConfigurationError: no such records, a language that the split does not hold (said before any image is
        encoded), no image that decodes, or too many that do not.
    """
    pool, groups = read_pool(data_dir, split), language_groups(data_dir)
    return measure_pool(embedder, pool, name, split, languages, batch_size, progress, groups, max_missing=max_missing)[
        0
    ]


def read_pool(data_dir: str | pathlib.Path, split: str) -> CaptionedImages:
    """Reads the captions of one split; the images are read again when they are encoded, so that none is kept."""
    pool = CaptionedImages(f"split {split!r} of {data_dir}", read=lambda wanted: _read_images(data_dir, split, wanted))
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        if not isinstance(record, records.ImageTextRecord):
            raise ConfigurationError(f"The records of split {split!r} in {data_dir} hold no images (feature 'image').")
        for text, language in zip(record.captions, record.languages):
            pool.add(record.image_id, text, language)
    return pool


def _read_images(data_dir: str | pathlib.Path, split: str, wanted: Sequence[int]) -> Iterator[bytes]:
    """Yields the wanted images, each once though it may come in several records; in file order, as `wanted` is."""
    missing, numbers = set(wanted), {}
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        if not record.captions:
            continue
        number = numbers.setdefault(record.image_id, len(numbers))
        if number in missing:
            missing.remove(number)
            yield record.image


def language_groups(data_dir: str | pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Returns the language groups of the data set's dataset.json, or else the paper's (A.3)."""
    path = pathlib.Path(data_dir) / "dataset.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        description = {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid JSON ({error}).") from None
    return description.get("language_groups") or base_config().evaluation.groups.to_dict()
