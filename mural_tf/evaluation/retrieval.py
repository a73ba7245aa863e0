"""Image-text retrieval on any image-text TFRecords, per language: the protocol of MURAL §4 with every caption counted.

For each language: image-to-text searches all captions in that language with every image that has one; text-to-image
searches those images with every caption. A positive is a caption of the same image (`image_id`); a caption that
repeats another image's word for word is not one, but is counted and reported. R@K is the hit rate, mean recall the
mean of R@1, R@5 and R@10 over both directions (`mural_tf.metrics.ranking`). A group's mean recall is the unweighted
mean over its languages that the data holds, and `all` is the mean over all languages evaluated.

Images that do not decode leave all pools, with their captions; empty captions leave theirs. Both are counted in the
protocol line.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from tqdm import tqdm

from mural_tf.config import ConfigurationError, base_config
from mural_tf.data import records
from mural_tf.metrics import ranking

UNDETERMINED = "und"  # BCP 47's code for captions whose records name no language


@dataclasses.dataclass
class Evaluation:
    """Numbers of one benchmark and what they were measured on.

    `metrics`: key -> number, as `evaluate_retrieval` returns it. `sizes`: language -> {"images", "captions",
    "repeated_captions"}. `groups`: group -> its languages that were evaluated; "all" is not in it.
    """

    name: str
    split: str
    protocol: str
    metrics: dict[str, float]
    sizes: dict[str, dict[str, int]]
    groups: dict[str, tuple[str, ...]]


@dataclasses.dataclass
class _Captions:
    """The captions of one split: per language parallel lists of texts and image numbers."""

    image_numbers: dict[str, int] = dataclasses.field(default_factory=dict)  # image_id -> number, in file order
    empty: int = 0
    texts: dict[str, list[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    owners: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))


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
) -> Evaluation:
    """Runs the protocol above.

    Args:
      embedder: anything with `Embedder`'s `encode_image` and `encode_text`.
      data_dir: folder of image-text TFRecords; `language_groups` of its dataset.json, if there, replace the
        configuration's groups.
      split: which records.
      languages: evaluate these only; None: all that the split holds.
      batch_size: images, or texts, per call of the model.
      name: first part of the keys; the emoji benchmark is this protocol under the name "emoji".
      progress: whether to show progress bars.

    Raises:
      ConfigurationError: no such records, a language that the split does not hold (said before any image is
        encoded), or no image that decodes.
    """
    captions = _read_captions(data_dir, split)
    chosen = _choose_languages(captions, languages, data_dir, split)
    wanted = sorted({owner for language in chosen for owner in captions.owners[language]})
    images, kept = embedder.encode_image(
        _read_images(data_dir, split, captions, wanted), batch_size=batch_size, on_error="skip", progress=progress
    )
    if not len(kept):
        raise ConfigurationError(f"None of the {len(wanted)} images of split {split!r} in {data_dir} decodes.")
    place = np.full(len(captions.image_numbers), -1)
    place[np.array(wanted)[kept]] = np.arange(len(kept))

    metrics, sizes = {}, {}
    for language in tqdm(chosen, desc="Evaluating", unit="language", disable=not progress):
        owners = place[captions.owners[language]]
        texts = [text for text, owner in zip(captions.texts[language], owners) if owner >= 0]
        owners = owners[owners >= 0]
        if not texts:  # its only images do not decode
            continue
        said = {"language": language} if getattr(embedder, "takes_languages", False) else {}
        text_embeddings = embedder.encode_text(texts, batch_size=batch_size, progress=False, **said)
        for key, value in _measure_language(images, text_embeddings, owners).items():
            metrics[f"{name}/{language}/{key}"] = value
        sizes[language] = {
            "images": len(np.unique(owners)),
            "captions": len(texts),
            "repeated_captions": _count_repeated(texts, owners),
        }
    groups = _present_groups(data_dir, sizes)
    for group, members in {**groups, "all": tuple(sizes)}.items():
        metrics[f"{name}/{group}/mean_recall"] = float(np.mean([metrics[f"{name}/{x}/mean_recall"] for x in members]))
    return Evaluation(name, split, _protocol(len(kept), len(wanted), captions.empty, sizes), metrics, sizes, groups)


def _read_captions(data_dir: str | pathlib.Path, split: str) -> _Captions:
    captions = _Captions()
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        if not isinstance(record, records.ImageTextRecord):
            raise ConfigurationError(f"The records of split {split!r} in {data_dir} hold no images (feature 'image').")
        owner = captions.image_numbers.setdefault(record.image_id, len(captions.image_numbers))
        for text, language in zip(record.captions, record.languages):
            if text.strip():
                captions.texts[language or UNDETERMINED].append(text)
                captions.owners[language or UNDETERMINED].append(owner)
            else:
                captions.empty += 1
    return captions


def _read_images(data_dir: str | pathlib.Path, split: str, captions: _Captions, wanted: list[int]) -> Iterator[bytes]:
    """Yields the wanted images, each once though it may come in several records; in file order, as `wanted` is."""
    missing = set(wanted)
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        number = captions.image_numbers[record.image_id]
        if number in missing:
            missing.remove(number)
            yield record.image


def _choose_languages(captions: _Captions, languages: Sequence[str] | None, data_dir, split: str) -> list[str]:
    known = sorted(captions.texts)
    unknown = sorted(set(languages or ()) - set(known))
    if unknown or not known:
        asked = f"No captions in {', '.join(unknown)}" if unknown else "No captions"
        raise ConfigurationError(
            f"{asked} in split {split!r} of {data_dir}; its languages: {', '.join(known) or 'none'}."
        )
    return list(dict.fromkeys(languages)) if languages else known


def _measure_language(images: np.ndarray, texts: np.ndarray, owners: np.ndarray) -> dict[str, float]:
    """Ranks both ways: images [I, D] with a caption among `owners` [C] against texts [C, D]."""
    pool, owners = np.unique(owners, return_inverse=True)  # the images of this language, renumbered
    order = np.argsort(owners, kind="stable")
    captions_of = np.split(order, np.cumsum(np.bincount(owners))[:-1])
    images = images[pool]
    return ranking.summarize(ranking.ranks(images, texts, captions_of), ranking.ranks(texts, images, owners))


def _count_repeated(texts: Sequence[str], owners: np.ndarray) -> int:
    """Counts captions whose text is also a caption of another image."""
    images_of = collections.defaultdict(set)
    for text, owner in zip(texts, owners):
        images_of[text].add(owner)
    return sum(len(images_of[text]) > 1 for text in texts)


def _present_groups(data_dir: str | pathlib.Path, evaluated: Mapping) -> dict[str, tuple[str, ...]]:
    """Returns the language groups of the data set, or else of the configuration, as far as they were evaluated."""
    path = pathlib.Path(data_dir) / "dataset.json"
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        description = {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid JSON ({error}).") from None
    groups = description.get("language_groups") or base_config().evaluation.groups.to_dict()
    present = {group: tuple(x for x in members if x in evaluated) for group, members in groups.items()}
    return {group: members for group, members in present.items() if members}


def _protocol(decoded: int, images: int, empty: int, sizes: Mapping) -> str:
    total, repeated = (sum(size[key] for size in sizes.values()) for key in ("captions", "repeated_captions"))
    parts = [
        f"image-text retrieval, both directions, every caption counted; {decoded:,} of {images:,} images",
        f"{total:,} captions in {len(sizes)} language{'s' * (len(sizes) != 1)}",
        f"{repeated:,} captions repeat another image's (not positives)",
    ]
    if empty:
        parts.append(f"{empty:,} empty captions left out")
    return ", ".join(parts)
