"""Image-text retrieval over images and their captions in several languages: the protocol of [MURAL] §4.

For each language: image-to-text searches all captions in that language with every image that has one; text-to-image
searches those images with every caption. A positive is a caption of the same image; a caption that repeats another
image's word for word is not a positive, but is counted and reported. R@K is the hit rate, mean recall the mean of R@1,
R@5 and R@10 over both directions (`mural_tf.metrics.ranking`). A group's mean recall is the unweighted mean over its
languages that were evaluated, and `all` is the mean over all evaluated languages.

Images that are missing or do not decode leave all pools, with their captions; empty captions leave theirs. Both are
counted in the protocol line, and a benchmark without all of its images says there that it is not complete.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from mural_lite.config import base_config
from mural_lite.embedder import Embedder
from mural_lite.errors import UserError
from mural_lite.files import as_path, json_field, read_json
from mural_lite.progress import tqdm
from mural_tf.data import records
from mural_tf.evaluation.protocol import default_protocol
from mural_tf.metrics import ranking


@dataclasses.dataclass
class Evaluation:
    """Numbers of one benchmark and the data that they were measured on.

    Attributes:
      name: the first part of the metrics' keys.
      split: the split of the data.
      protocol: a line on how the numbers were measured.
      metrics: {`<name>/<row>/<metric>`: number}, where the row is a language, a group, a task or a pair of languages.
      sizes: {row: counts}, for example {"images": 1000, "captions": 5000}.
      groups: {group: its languages that were evaluated}, without "all".
      notes: sentences that a reader needs to judge the numbers.
      pictures: the pool's embeddings, float32 [K, D], and their int [K] image numbers, so that reports need not encode
        the images again.
      published: {row: {model: its published number}}, shown next to ours.
    """

    name: str
    split: str
    protocol: str
    metrics: dict[str, float]
    sizes: dict[str, dict[str, int]]
    groups: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    pictures: tuple[np.ndarray, np.ndarray] | None = dataclasses.field(default=None, repr=False, compare=False)
    published: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


# The metric of held-out captions, which occur in no training text: text to image, the mean of R@1, R@5 and R@10, among
# all images of the language.
HELD_OUT = "held_out_names/text_to_image/mean_recall"
MIXED = 5  # captions of an image by which a pool of all languages is judged
UNDETERMINED = "und"  # BCP 47's code for captions whose records name no language


@dataclasses.dataclass
class CaptionedImages:
    """Images, numbered from 0 in file order, and their captions.

    Attributes:
      where: names the data in messages.
      read: a function from increasing image numbers to an iterable of images for `encode_image`.
      empty: how many captions were empty and left out.
      subset: a part of the protocol line, where only the images in the folder were taken; otherwise empty.
      texts, owners: per language, parallel lists of captions and image numbers.
      notes: sentences for the evaluation's notes.
    """

    where: str
    read: Callable[[Sequence[int]], Iterable]
    image_numbers: dict[str, int] = dataclasses.field(default_factory=dict)  # {image_id: number}
    empty: int = 0
    subset: str = ""
    texts: dict[str, list[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    owners: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, image_id: str, caption: str, language: str) -> None:
        """Adds an image, if it is new, and its caption, unless the caption is empty; "" is an unknown language."""
        number = self.image_numbers.setdefault(image_id, len(self.image_numbers))
        if caption.strip():
            self.texts[language or UNDETERMINED].append(caption)
            self.owners[language or UNDETERMINED].append(number)
        else:
            self.empty += 1

    def readable_captions(self, language: str, readable: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Returns a language's C captions of the images `readable`, and int64 [C]: the index of their image in it.

        `readable` are the numbers of the images that can be read, int [K], increasing.
        """
        index_of = np.full(len(self.image_numbers), -1)
        index_of[readable] = np.arange(len(readable))
        owners = index_of[self.owners[language]]
        return list(itertools.compress(self.texts[language], owners >= 0)), owners[owners >= 0]


@dataclasses.dataclass
class Retrieval:
    """One measurement of a model; `request.Request` measures the published benchmarks, from their own files.

    Attributes:
      embedder: anything with `Embedder`'s methods.
      folder: the data's folder.
      split: the split to measure.
      protocol: the choices of `evaluation.protocol`.
      languages: the languages to measure; empty: all.
      batch_size: images, or texts, per call of the model.
      progress: whether to show progress.
    """

    embedder: Embedder
    folder: pathlib.Path
    split: str
    protocol: ConfigDict
    languages: tuple[str, ...] = ()
    batch_size: int = 128
    progress: bool = False

    def measure(
        self,
        pool: CaptionedImages,
        name: str,
        groups: Mapping[str, Sequence[str]] | None = None,
        views: Mapping[str, Sequence[np.ndarray]] | None = None,
        held_out: Collection[str] = (),
    ) -> list[Evaluation]:
        """Measures retrieval on the whole pool or on parts of it, and returns an evaluation for each view.

        Every image and caption is encoded once.

        Args:
          pool: images and captions.
          name: first part of the keys, if there are no views.
          groups: {group: languages}, for group means.
          views: {name: parts}; each part is the image numbers of a smaller pool, int [P], and a view's numbers are
            means over its parts. For example, MS-COCO 1K is a view of five parts. `None`: one view of the whole pool.
          held_out: ids of images whose captions are also measured separately: see `HELD_OUT`.

        Raises:
          UserError: a pool without captions, a language that it lacks (said before any image is encoded), no image
            that can be read, or a larger share of unreadable images than the protocol's `max_missing`.
        """
        languages = choose_languages(pool, self.languages)
        captioned = np.unique(np.concatenate([pool.owners[language] for language in languages]))  # image numbers
        images, indices = self.encode(pool.read(captioned.tolist()))  # [K, D], [K]
        readable = captioned[indices]  # [K]
        image_ids = list(pool.image_numbers)
        missing = [image_ids[number] for number in np.setdiff1d(captioned, readable)]
        missing_notes = check_missing(missing, len(captioned), pool.where, self.protocol.max_missing)
        held_out_ids = set(held_out)
        is_held_out_image = np.array([image_ids[number] in held_out_ids for number in readable])  # [K]

        parts_by_view = views or {name: [np.arange(len(image_ids))]}
        evaluations = {  # without protocol lines, which count the captions that were measured
            view: Evaluation(view, self.split, "", {}, {}, pictures=(images, readable)) for view in parts_by_view
        }
        captions_by_language: dict[str, _Captions] = {}  # only for a mixed pool: they may need much memory
        for language in tqdm(languages, desc="Evaluating", unit="language", disable=not self.progress):
            captions = self._encode_readable(pool, language, readable)
            if captions is None:
                continue
            if self.protocol.mixed_pool:
                captions_by_language[language] = captions
            for view, parts in parts_by_view.items():
                is_in_parts = [np.isin(readable, part) for part in parts]  # bool [K] each
                _measure_view(evaluations[view], language, images, captions, is_in_parts)
                _measure_held_out(evaluations[view], language, images, captions, is_held_out_image)

        for view, evaluation in evaluations.items():
            if self.protocol.mixed_pool:
                _measure_mixed_pool(evaluation, images, captions_by_language)
            _add_all_groups(evaluation, groups or {})
            evaluation.notes = [*missing_notes, *pool.notes, *evaluation.notes]
            evaluation.protocol = _protocol_line(
                decoded=len(readable),
                images=len(captioned),
                pool=pool,
                sizes=evaluation.sizes,
                part_count=len(parts_by_view[view]),
            )
        return list(evaluations.values())

    def _encode_readable(self, pool: CaptionedImages, language: str, readable: np.ndarray) -> _Captions | None:
        """Returns a language's captions of the images `readable`, int [K]; `None` if it captions only other images."""
        texts, owners = pool.readable_captions(language, readable)
        if not texts:
            return None
        embeddings = encode_captions(self.embedder, texts, language, self.batch_size)
        return _Captions(texts, embeddings, owners)

    def measure_records(self, name: str, groups: Mapping[str, Sequence[str]] | None = None) -> list[Evaluation]:
        """Measures the folder's image-text TFRecords as `measure` does; groups that are `None` are the data's own."""
        pool = read_pool(self.folder, self.split)
        if groups is None:
            groups = language_groups(self.folder)
        return self.measure(pool, name, groups, held_out=held_out_images(self.folder))

    def encode(self, images: Iterable) -> tuple[np.ndarray, np.ndarray]:
        """Returns float32 [K, D] embeddings of the images that can be read, and int [K]: their indices in `images`."""
        return self.embedder.encode_image(images, batch_size=self.batch_size, on_error="skip", progress=self.progress)


def measure_retrieval(
    embedder: Embedder,
    data_dir: str | pathlib.Path,
    split: str,
    languages: Sequence[str] | None = None,
    batch_size: int = 128,
    name: str = "retrieval",
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Evaluation:
    """Measures image-text retrieval on one split of a folder of records, and returns the evaluation.

    Recalls are in percent, ranks count from 1. Keys: `<name>/<language>/image_to_text/recall@1`, `@5`, `@10`,
    `.../mean_rank`, `.../median_rank`, the same for `text_to_image`, `<name>/<language>/mean_recall`,
    `<name>/<group>/mean_recall` and `<name>/all/mean_recall`. `name` is the first part of the keys, `groups` are
    {group: languages}, by default the data's own, and other arguments are as in `Retrieval`. Raises as
    `Retrieval.measure`, but allows any share of images that do not decode.
    """
    protocol = default_protocol()
    protocol.max_missing = 1.0
    retrieval = Retrieval(embedder, as_path(data_dir), split, protocol, tuple(languages or ()), batch_size)
    (evaluation,) = retrieval.measure_records(name, groups)
    return evaluation


def encode_captions(embedder: Embedder, texts: Sequence[str], language: str, batch_size: int = 128) -> np.ndarray:
    """Returns the captions' embeddings, float32 [C, D]; a model with word vectors per language gets the language."""
    options = {"batch_size": batch_size, "progress": False}
    if getattr(embedder, "takes_languages", False):
        options["language"] = language
    return embedder.encode_text(texts, **options)


def choose_languages(pool: CaptionedImages, languages: Sequence[str] | None) -> list[str]:
    """Returns the languages to evaluate, by default all of the pool; `UserError` if the pool lacks one of them."""
    existing = sorted(pool.texts)
    unknown = sorted(set(languages or ()) - set(existing))
    if unknown or not existing:
        problem = "No captions"
        if unknown:
            problem += f" in {', '.join(unknown)}"
        raise UserError(f"{problem} in {pool.where}; its languages: {', '.join(existing) or 'none'}.")
    return list(dict.fromkeys(languages or existing))


def add_groups(evaluation: Evaluation, groups: Mapping[str, Sequence[str]], metric: str = "mean_recall") -> None:
    """Adds to `evaluation` the mean of `metric` over each group's evaluated languages and over all languages.

    `groups` are {group: languages}. Also sets the evaluation's `groups` to the groups with an evaluated language, and
    adds a note for each of them that lacks members.
    """
    evaluation.groups = {}
    for group, members in groups.items():
        evaluated = tuple(language for language in members if language in evaluation.sizes)
        if not evaluated:
            continue
        evaluation.groups[group] = evaluated
        note = f"Group {group} has {len(evaluated)} of its {len(members)} members."
        if len(evaluated) < len(members) and note not in evaluation.notes:  # a call for another metric adds it, too
            evaluation.notes.append(note)
    for group, members in {**evaluation.groups, "all": tuple(evaluation.sizes)}.items():
        values = [evaluation.metrics[f"{evaluation.name}/{language}/{metric}"] for language in members]
        evaluation.metrics[f"{evaluation.name}/{group}/{metric}"] = float(np.mean(values))


def _add_all_groups(evaluation: Evaluation, groups: Mapping[str, Sequence[str]]) -> None:
    """Adds the groups' means of mean recall and, if every evaluated language has held-out captions, of `HELD_OUT`."""
    add_groups(evaluation, groups)
    if all(f"{evaluation.name}/{language}/{HELD_OUT}" in evaluation.metrics for language in evaluation.sizes):
        add_groups(evaluation, groups, HELD_OUT)


def check_missing(missing: Sequence[str], total: int, where: str, max_missing: float) -> list[str]:
    """Returns [a note on the images that could not be read], or [] if all could be read.

    `missing` are the names of these images, out of `total` images of the benchmark `where`. Raises `UserError` if all
    are missing, or a larger share than `max_missing`, 0 to 1.
    """
    if not missing:
        return []
    first = ", ".join(missing[:3])  # enough to recognise a wrong folder
    if len(missing) == total:
        raise UserError(f"None of the {total} images of {where} can be read; the first is {first}.")
    text = f"{len(missing):,} of {total:,} images of {where} are missing or unreadable, such as {first}"
    if len(missing) > max_missing * total:
        raise UserError(f"{text}: more than --protocol.max_missing={max_missing} allows. Complete the folder.")
    return [f"NOT COMPLETE: {text}. These numbers are of a smaller pool and easier than the benchmark's."]


@dataclasses.dataclass
class _Captions:
    """Captions of one language: C texts, embeddings, float32 [C, D], and the indices of their images, int [C]."""

    texts: list[str]
    embeddings: np.ndarray
    owners: np.ndarray

    def of_images(self, is_wanted: np.ndarray) -> _Captions:
        """Returns the captions of only the images for which `is_wanted`, bool [I], is true."""
        is_chosen = is_wanted[self.owners]
        texts = list(itertools.compress(self.texts, is_chosen))
        return _Captions(texts, self.embeddings[is_chosen], self.owners[is_chosen])


def _measure_view(
    evaluation: Evaluation, language: str, images: np.ndarray, captions: _Captions, parts: Sequence[np.ndarray]
) -> None:
    """Adds a language's metrics, means over parts of the images [I, D], and its sizes, sums over them, to `evaluation`.

    `parts` say which images each part has, bool [I] each. Parts without captions in the language do not count.
    """
    rows = []
    sizes = dict.fromkeys(("images", "captions", "repeated_captions"), 0)
    for part in parts:
        pool = captions.of_images(part)
        if not pool.texts:
            continue
        # Only images with a caption in this language, numbered anew: [i] image numbers, [C] indices among them.
        numbers, owners = np.unique(pool.owners, return_inverse=True)
        pairs = owners, np.arange(len(owners))
        to_text, to_image = ranking.ranks_both_ways(images[numbers], pool.embeddings, pairs)
        rows.append(ranking.summarize(to_text, to_image))
        sizes["images"] += len(numbers)
        sizes["captions"] += len(owners)
        sizes["repeated_captions"] += _count_repeated(pool)
    if rows:
        evaluation.sizes[language] = sizes
        for key in rows[0]:
            evaluation.metrics[f"{evaluation.name}/{language}/{key}"] = float(np.mean([row[key] for row in rows]))


def _measure_held_out(
    evaluation: Evaluation, language: str, images: np.ndarray, captions: _Captions, is_held_out_image: np.ndarray
) -> None:
    """Adds the recall of a language's held-out captions among the images, [I, D], if it has such captions.

    `is_held_out_image`, bool [I], says which images have captions that occur in no training text.
    """
    is_held_out = is_held_out_image[captions.owners]  # [C]
    if is_held_out.any():
        recall = _text_to_image_recall(images, captions, is_held_out)
        evaluation.metrics[f"{evaluation.name}/{language}/{HELD_OUT}"] = recall


def _measure_mixed_pool(evaluation: Evaluation, images: np.ndarray, captions: Mapping[str, _Captions]) -> None:
    """Adds metrics and a note on searching the captions of all languages at once with images [I, D] ([MURAL] A.5).

    Per language: the percentage of the first five captions that are in it. Over all languages: the percentage of the
    first five that are the image's own. A view's parts are one pool here.
    """
    texts = np.concatenate([pool.embeddings for pool in captions.values()])  # [C, D]
    owners = np.concatenate([pool.owners for pool in captions.values()])  # [C]
    language_of = np.repeat(np.arange(len(captions)), [len(pool.owners) for pool in captions.values()])  # [C]
    queries = np.unique(owners)  # [Q]
    # [Q, MIXED]; image by image, because all similarities [Q, C] may not fit into memory.
    first = np.array([np.argsort(-(image @ texts.T), kind="stable")[:MIXED] for image in images[queries]])
    language_counts = np.bincount(language_of[first.ravel()], minlength=len(captions))
    shares = 100 * language_counts / first.size
    precision = float(100 * np.mean(owners[first] == queries[:, None]))  # [Q, MIXED] == [Q, 1]
    for language, share in zip(captions, shares):
        evaluation.metrics[f"{evaluation.name}/{language}/mixed_pool/share@{MIXED}"] = float(share)
    evaluation.metrics[f"{evaluation.name}/all/mixed_pool/precision@{MIXED}"] = precision
    largest = sorted(zip(shares, captions), reverse=True)[:5]  # languages, so that the note stays a line
    listed = ", ".join(f"{share:.1f}% in {language}" for share, language in largest)
    evaluation.notes.append(
        f"Of the first {MIXED} captions of all languages {precision:.1f}% are the image's own; {listed}."
    )


def _text_to_image_recall(images: np.ndarray, captions: _Captions, queries: np.ndarray) -> float:
    """Returns the mean of R@1, R@5 and R@10 in percent, of searches for the image of a caption.

    The captions `queries`, bool [C], search among all images, [I, D], that have a caption.
    """
    numbers, owners = np.unique(captions.owners, return_inverse=True)
    ranks = ranking.ranks(captions.embeddings[queries], images[numbers], owners[queries])
    return ranking.mean_recall(ranks)


def _count_repeated(captions: _Captions) -> int:
    """Returns the number of captions whose text is also a caption of another image."""
    images_of = collections.defaultdict(set)
    for text, owner in zip(captions.texts, captions.owners):
        images_of[text].add(owner)
    return sum(len(images_of[text]) > 1 for text in captions.texts)


def _protocol_line(decoded: int, images: int, pool: CaptionedImages, sizes: Mapping, part_count: int) -> str:
    """Returns the protocol line of a view of `part_count` parts, over which its metrics are means.

    `decoded` of the `images` with captions could be read; `sizes` are {language: counts}, as in `Evaluation`.
    """
    captions = sum(size["captions"] for size in sizes.values())
    repeated = sum(size["repeated_captions"] for size in sizes.values())
    languages = "1 language" if len(sizes) == 1 else f"{len(sizes)} languages"
    line = "image-text retrieval, both directions, every caption counted; "
    if part_count > 1:
        line += f"means over {part_count} parts, "
    line += (
        f"{pool.subset}{decoded:,} of {images:,} images, {captions:,} captions in {languages}, {repeated:,} captions "
        "repeat another image's (not positives)"
    )
    if pool.empty:
        line += f", {pool.empty:,} empty captions left out"
    if decoded < images:
        line = f"NOT COMPLETE: {line}"
    return line


def read_pool(data_dir: str | pathlib.Path, split: str) -> CaptionedImages:
    """Returns the images and captions of a split of records; raises `UserError` for records without images."""
    # Images are read when they are encoded, to save memory.
    pool = CaptionedImages(f"split {split!r} of {data_dir}", read=lambda wanted: _read_images(data_dir, split, wanted))
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        if not isinstance(record, records.ImageTextRecord):
            raise UserError(f"The records of split {split!r} in {data_dir} hold no images (feature 'image').")
        for text, language in zip(record.captions, record.languages):
            pool.add(record.image_id, text, language)
    return pool


def _read_images(data_dir: str | pathlib.Path, split: str, wanted: Sequence[int]) -> Iterator[bytes]:
    """Yields the images with the numbers `wanted`, increasing, as stored; an image of several records comes once."""
    unread = set(wanted)
    numbers: dict[str, int] = {}  # {image_id: number}, as `read_pool` counts: images without captions have no number
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        if not record.captions:
            continue
        number = numbers.setdefault(record.image_id, len(numbers))
        if number in unread:
            unread.remove(number)
            yield record.image


def held_out_images(data_dir: str | pathlib.Path) -> list[str]:
    """Returns the ids of images whose names were held out of training, by the data set's dataset.json."""
    return _dataset_field(data_dir, "held_out_names", list[str], [])


def language_groups(data_dir: str | pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Returns the language groups of the data set's dataset.json, or else the paper's (A.3)."""
    groups = _dataset_field(data_dir, "language_groups", dict[str, list[str]], {})
    return groups or base_config().evaluation.groups.to_dict()


def _dataset_field(data_dir: str | pathlib.Path, name: str, form: type, default):
    """Returns a field of the data set's dataset.json, of the type `form`, or `default` without this file or field."""
    path = as_path(data_dir) / "dataset.json"
    if not path.exists():
        return default
    return json_field(read_json(path), name, form, path, default)
