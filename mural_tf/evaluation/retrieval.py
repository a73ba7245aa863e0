"""Image-text retrieval over images and their captions in several languages: the protocol of [MURAL] §4.

For each language: image-to-text searches all captions in that language with every image that has one; text-to-image
searches those images with every caption. A positive is a caption of the same image; a caption that repeats another
image's word for word is not one, but is counted and reported. R@K is the hit rate, mean recall the mean of R@1, R@5
and R@10 over both directions (`mural_tf.metrics.ranking`). A group's mean recall is the unweighted mean over its
languages that were evaluated, and `all` is the mean over all of them.

Images that are missing or do not decode leave all pools, with their captions; empty captions leave theirs. Both are
counted in the protocol line, and a benchmark without all of its images says there that it is not complete.
"""

from __future__ import annotations

import collections
import dataclasses
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

LONG_LIST = 5000  # encoding at least as many texts shows progress
# Where the images of each collection usually lie below a benchmark's folder.
IMAGE_FOLDERS = ("", "images", "flickr30k-images", "val2014", "train2014", "images/val2014", "images/train2014")


@dataclasses.dataclass
class Evaluation:
    """Numbers of one benchmark and the data that they were measured on.

    `metrics`: `<name>/<row>/<metric>` -> number, where the row is a language, a group, a task or a pair of languages.
    `sizes`: row -> what was counted there, such as {"images": 1000, "captions": 5000}. `groups`: group -> its languages
    that were evaluated; "all" is not in it. `notes`: what a reader must know to judge the numbers, a sentence each.
    `pictures`: the pool's embeddings, float32 [K, D], and their int [K] image numbers, for who looks at the same pool.
    """

    name: str
    split: str
    protocol: str
    metrics: dict[str, float]
    sizes: dict[str, dict[str, int]]
    groups: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    pictures: tuple[np.ndarray, np.ndarray] | None = dataclasses.field(default=None, repr=False, compare=False)


# The metric of captions that no training text said, in data that hold some out: text to image, the mean of R@1, R@5 and
# R@10, among all images of the language.
HELD_OUT = "held_out_names/text_to_image/mean_recall"
MIXED = 5  # captions of an image by which a pool of all languages is judged
UNDETERMINED = "und"  # BCP 47's code for captions whose records name no language


@dataclasses.dataclass
class CaptionedImages:
    """Images, numbered from 0 in file order, and their captions.

    `read`: increasing image numbers -> an iterable of what `encode_image` takes. `where`: names the data in messages.
    `texts` and `owners`: per language parallel lists of captions and image numbers. `empty`: captions left out.
    """

    where: str
    read: Callable[[Sequence[int]], Iterable]
    image_numbers: dict[str, int] = dataclasses.field(default_factory=dict)  # image_id -> number
    empty: int = 0
    texts: dict[str, list[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    owners: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, image_id: str, caption: str, language: str) -> None:
        """Adds one caption, and its image if it is new."""
        number = self.image_numbers.setdefault(image_id, len(self.image_numbers))
        if caption.strip():
            self.texts[language or UNDETERMINED].append(caption)
            self.owners[language or UNDETERMINED].append(number)
        else:
            self.empty += 1


@dataclasses.dataclass
class Request:
    """One run of a benchmark.

    `embedder`: anything with `Embedder`'s methods. `folder`: of the benchmark's files. `languages`: only these; empty:
    all. `batch_size`: images, or texts, per call of the model.
    """

    embedder: Embedder
    folder: pathlib.Path
    split: str
    protocol: ConfigDict
    languages: tuple[str, ...] = ()
    batch_size: int = 128
    progress: bool = False
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (problem, file and line)

    def on_problem(self, problem: str, location: str) -> None:
        """Keeps what a reader could not use; `take_problems` decides whether it was too much."""
        self.problems.append((problem, location))

    def take_problems(self, used: int) -> list[str]:
        """Returns a note on the rows left out so far; raises `UserError` if there were too many."""
        if not self.problems:
            return []
        kinds = collections.Counter(problem for problem, _ in self.problems)
        first = {problem: location for problem, location in reversed(self.problems)}
        listed = "; ".join(
            f"{count} x {problem}, first at {first[problem]}" for problem, count in sorted(kinds.items())
        )
        left_out = len(self.problems)
        self.problems.clear()
        if left_out > self.protocol.max_missing * (used + left_out):
            raise UserError(
                f"{left_out} of {used + left_out} rows cannot be used ({listed}): more than "
                f"--protocol.max_missing={self.protocol.max_missing} allows. Repair the files."
            )
        return [f"NOT COMPLETE: {left_out} of {used + left_out} rows are left out: {listed}."]

    def file_pool(self, captions: Iterable, where: str) -> CaptionedImages:
        """Returns the pool of images in files, from (image_file, image_id, caption, language, location) tuples."""
        files: dict[str, str] = {}
        pool = CaptionedImages(where, read=lambda wanted: self._paths(files, pool, wanted))
        for image_file, image_id, caption, language, _ in captions:
            files.setdefault(image_id, image_file)
            pool.add(image_id, caption, language)
        pool.notes += self.take_problems(sum(map(len, pool.texts.values())))
        return pool

    def measure(
        self,
        pool: CaptionedImages,
        name: str,
        groups: Mapping[str, Sequence[str]] | None = None,
        views: Mapping[str, Sequence[np.ndarray]] | None = None,
        held_out: Collection[str] = (),
    ) -> list[Evaluation]:
        """Encodes every image and caption once and measures retrieval on the whole pool or on parts of it.

        Captions are translated first if the protocol names translations.

        Args:
          pool: what to search and to search with.
          name: first part of the keys, if there are no views.
          groups: group -> languages, for group means.
          views: name -> parts, each the image numbers of one smaller pool; a view's numbers are means over its parts.
            MS-COCO 1K is a view of five parts.
          held_out: ids of images whose captions are measured once more, apart from the others: see `HELD_OUT`.

        Returns:
          One evaluation for each view.

        Raises:
          UserError: a language that the pool does not hold (said before any image is encoded), no image that
            can be read, or a larger share missing than the protocol's `max_missing`.
        """
        if self.protocol.translations:
            from mural_tf.evaluation.translated import translate_pool  # a protocol of its own

            translate_pool(pool, self.protocol.translations, self.protocol.max_missing)
        embedder, progress = self.embedder, self.progress
        chosen = choose_languages(pool, self.languages)
        wanted = sorted({owner for language in chosen for owner in pool.owners[language]})
        images, kept = self.encode(pool.read(wanted))
        ids = list(pool.image_numbers)
        missing = [ids[number] for number in np.delete(np.array(wanted), kept)]
        missing_notes = check_missing(missing, len(wanted), pool.where, self.protocol.max_missing)
        row_of = np.full(len(pool.image_numbers), -1)
        row_of[np.array(wanted)[kept]] = np.arange(len(kept))

        views = views or {name: [np.arange(len(row_of))]}
        pictures = images, np.array(wanted)[kept]
        results = {view: Evaluation(view, self.split, "", {}, {}, pictures=pictures) for view in views}
        by_language: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for language in tqdm(chosen, desc="Evaluating", unit="language", disable=not progress):
            owners = row_of[pool.owners[language]]
            texts = [text for text, owner in zip(pool.texts[language], owners) if owner >= 0]
            owners = owners[owners >= 0]
            if not texts:  # its only images cannot be read
                continue
            text_embeddings = encode_captions(embedder, texts, language, self.batch_size)
            if self.protocol.mixed_pool:
                by_language[language] = text_embeddings, owners
            for view, parts in views.items():
                rows_of_parts = [row_of[part] for part in parts]
                _measure_view(results[view], language, images, text_embeddings, owners, texts, rows_of_parts)
                marked = np.isin(owners, row_of[[pool.image_numbers[i] for i in held_out if i in pool.image_numbers]])
                if marked.any():
                    recall = _recall_of(images[np.unique(owners)], text_embeddings, owners, marked)
                    results[view].metrics[f"{view}/{language}/{HELD_OUT}"] = recall
        for view, result in results.items():
            if by_language:
                _measure_mixed_pool(result, images, by_language)
            add_groups(result, groups or {})
            if all(f"{view}/{language}/{HELD_OUT}" in result.metrics for language in result.sizes):
                add_groups(result, groups or {}, HELD_OUT)
            result.notes = [*missing_notes, *pool.notes, *result.notes]
            result.protocol = _protocol(len(kept), len(wanted), pool.empty, result.sizes, len(views[view]))
        return list(results.values())

    def measure_records(self, name: str) -> list[Evaluation]:
        """Measures image-text retrieval on a folder of image-text TFRecords."""
        pool = read_pool(self.folder, self.split)
        return self.measure(pool, name, language_groups(self.folder), held_out=held_out_images(self.folder))

    def encode(self, images: Iterable) -> tuple[np.ndarray, np.ndarray]:
        """Returns embeddings [K, D] and the int [K] places of the images that can be read."""
        return self.embedder.encode_image(images, batch_size=self.batch_size, on_error="skip", progress=self.progress)

    def encode_images(self, images: Sequence, where: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Encodes paths or uint8 arrays; what cannot be read is bounded as in `check_missing`.

        Returns embeddings [K, D], the int [K] places of the readable images, and notes.
        """
        embeddings, kept = self.encode(images)
        missing = [str(images[i]) for i in np.delete(np.arange(len(images)), kept)]
        return embeddings, kept, check_missing(missing, len(images), where, self.protocol.max_missing)

    def encode_texts(self, texts: Sequence[str], head: str = "") -> np.ndarray:
        """Returns embeddings [N, D] of the image-text head, or of another one."""
        embedder = self.embedder.with_text_head(head) if head else self.embedder
        progress = self.progress and len(texts) >= LONG_LIST
        return embedder.encode_text(list(texts), batch_size=self.batch_size, progress=progress)

    def text_heads(self) -> dict[str, str]:
        """Returns suffix of a row's name -> head: "" for the image-text head, then the model's others."""
        return {"": "", **{f"_{head}_head": head for head in getattr(self.embedder, "text_heads", ())}}

    def image_path(self, name: str) -> pathlib.Path:
        """Returns where an image lies, or the first place where it should."""
        roots = [as_path(self.protocol.images)] if self.protocol.images else []
        folders = [root / folder for root in (*roots, self.folder) for folder in IMAGE_FOLDERS]
        names = dict.fromkeys((name, pathlib.PurePosixPath(name).name))  # with and without Karpathy's "val2014/"
        candidates = [directory / file_name for file_name in names for directory in folders]
        return next((path for path in candidates if path.is_file()), candidates[0])

    def _paths(self, files: dict[str, str], pool: CaptionedImages, wanted: Sequence[int]) -> list[pathlib.Path]:
        ids = list(pool.image_numbers)
        return [self.image_path(files[ids[number]]) for number in wanted]


def measure_retrieval(
    embedder: Embedder,
    data_dir: str | pathlib.Path,
    split: str,
    languages: Sequence[str] | None = None,
    batch_size: int = 128,
    name: str = "retrieval",
) -> Evaluation:
    """Measures one split of a folder of records, for any share of images that decode.

    Recalls are in percent, ranks count from 1. Keys: `<name>/<language>/image_to_text/recall@1`, `@5`, `@10`,
    `.../mean_rank`, `.../median_rank`, the same for `text_to_image`, `<name>/<language>/mean_recall`,
    `<name>/<group>/mean_recall` and `<name>/all/mean_recall`. Arguments are as in `Request`, `name` begins the keys;
    raises as `Request.measure`.
    """
    protocol = default_protocol()
    protocol.max_missing = 1.0
    request = Request(embedder, as_path(data_dir), split, protocol, tuple(languages or ()), batch_size)
    return request.measure_records(name)[0]


def encode_captions(embedder: Embedder, texts: Sequence[str], language: str, batch_size: int = 128) -> np.ndarray:
    """Returns float32 [C, D]; a model with word vectors per language gets the language."""
    said = {"language": language} if getattr(embedder, "takes_languages", False) else {}
    return embedder.encode_text(texts, batch_size=batch_size, progress=False, **said)


def choose_languages(pool: CaptionedImages, languages: Sequence[str] | None) -> list[str]:
    """Returns the languages to evaluate; raises `UserError` for one that the pool does not hold."""
    existing = sorted(pool.texts)
    unknown = sorted(set(languages or ()) - set(existing))
    if unknown or not existing:
        problem = f"No captions in {', '.join(unknown)}" if unknown else "No captions"
        raise UserError(f"{problem} in {pool.where}; its languages: {', '.join(existing) or 'none'}.")
    return list(dict.fromkeys(languages)) if languages else existing


def add_groups(evaluation: Evaluation, groups: Mapping[str, Sequence[str]], metric: str = "mean_recall") -> None:
    """Adds the mean of `metric` over each group's evaluated languages and over all; notes groups with gaps."""
    present = {group: tuple(x for x in members if x in evaluation.sizes) for group, members in groups.items()}
    evaluation.groups = {group: members for group, members in present.items() if members}
    for group, members in evaluation.groups.items():
        note = f"Group {group} has {len(members)} of its {len(groups[group])} members."
        if len(members) < len(groups[group]) and note not in evaluation.notes:
            evaluation.notes.append(note)
    for group, members in {**evaluation.groups, "all": tuple(evaluation.sizes)}.items():
        values = [evaluation.metrics[f"{evaluation.name}/{x}/{metric}"] for x in members]
        evaluation.metrics[f"{evaluation.name}/{group}/{metric}"] = float(np.mean(values))


def check_missing(missing: Sequence[str], total: int, where: str, max_missing: float) -> list[str]:
    """Returns a note on images that could not be read; raises `UserError` if there are too many.

    Args:
      missing: their names.
      total: how many images the benchmark has.
      where: names the benchmark.
      max_missing: the largest share that may be missing, 0..1.
    """
    if not missing:
        return []
    first = ", ".join(missing[:3])
    if len(missing) == total:
        raise UserError(f"None of the {total} images of {where} can be read; the first is {first}.")
    text = f"{len(missing):,} of {total:,} images of {where} are missing or unreadable, such as {first}"
    if len(missing) > max_missing * total:
        raise UserError(f"{text}: more than --protocol.max_missing={max_missing} allows. Complete the folder.")
    return [f"NOT COMPLETE: {text}. These numbers are of a smaller pool and easier than the benchmark's."]


def _measure_view(result: Evaluation, language: str, images, texts, owners, captions, parts) -> None:
    """Adds the means over the parts' metrics; images [I, D], texts [C, D] and owners [C] among the images."""
    rows, sizes = [], collections.Counter()
    for part in parts:
        part = part[part >= 0]
        inside = np.isin(owners, part)
        if not inside.any():
            continue
        rows.append(_measure_part(images, texts[inside], owners[inside]))
        sizes["images"] += len(np.unique(owners[inside]))
        sizes["captions"] += int(inside.sum())
        sizes["repeated_captions"] += _count_repeated([captions[i] for i in np.flatnonzero(inside)], owners[inside])
    if rows:
        result.sizes[language] = {key: sizes[key] for key in ("images", "captions", "repeated_captions")}
        for key in rows[0]:
            result.metrics[f"{result.name}/{language}/{key}"] = float(np.mean([row[key] for row in rows]))


def _measure_part(images: np.ndarray, texts: np.ndarray, owners: np.ndarray) -> dict[str, float]:
    """Ranks both ways: the images [I, D] with a caption among `owners` [C] against texts [C, D]."""
    pool, owners = np.unique(owners, return_inverse=True)  # the images of this language, renumbered
    return ranking.summarize(*ranking.ranks_both_ways(images[pool], texts, (owners, np.arange(len(texts)))))


def _measure_mixed_pool(result: Evaluation, images: np.ndarray, pools: Mapping) -> None:
    """Adds what images [I, D] find among the captions of all languages, {language: ([C, D], owners [C])} ([MURAL] A.5).

    Per language the percentage of the first five captions that are in it; over all, of these that are the image's own.
    A view's parts are one pool here.
    """
    texts, owners = (np.concatenate(parts) for parts in zip(*pools.values()))
    counts = [len(owners_of) for _, owners_of in pools.values()]
    language_of, owned, count = np.repeat(np.arange(len(pools)), counts), np.unique(owners), min(MIXED, len(texts))
    first = [np.argsort(-(image @ texts.T), kind="stable")[:count] for image in images[owned]]
    shares = 100 * np.bincount(language_of[np.ravel(first)], minlength=len(pools)) / np.size(first)
    right = float(100 * np.mean(owners[first] == owned[:, None]))
    for language, share in zip(pools, shares):
        result.metrics[f"{result.name}/{language}/mixed_pool/share@{MIXED}"] = float(share)
    result.metrics[f"{result.name}/all/mixed_pool/precision@{MIXED}"] = right
    most = ", ".join(f"{share:.1f}% in {language}" for share, language in sorted(zip(shares, pools), reverse=True)[:5])
    result.notes.append(f"Of the first {MIXED} captions of all languages {right:.1f}% are the image's own; {most}.")


def _recall_of(images: np.ndarray, texts: np.ndarray, owners: np.ndarray, queries: np.ndarray) -> float:
    """The mean of R@1, R@5 and R@10 of the texts `queries`, bool [C], among the images [I, D] that have a text."""
    _, image_of = np.unique(owners, return_inverse=True)
    ranks = ranking.ranks(texts[queries], images, image_of[queries])
    return float(np.mean([ranking.recall_at(ranks, k) for k in ranking.CUTOFFS]))


def _count_repeated(texts: Sequence[str], owners: np.ndarray) -> int:
    """Counts captions whose text is also a caption of another image."""
    images_of = collections.defaultdict(set)
    for text, owner in zip(texts, owners):
        images_of[text].add(owner)
    return sum(len(images_of[text]) > 1 for text in texts)


def _protocol(decoded: int, images: int, empty: int, sizes: Mapping, parts: int) -> str:
    total, repeated = (sum(size[key] for size in sizes.values()) for key in ("captions", "repeated_captions"))
    parts_of = f"means over {parts} parts, " if parts > 1 else ""
    lines = [
        f"image-text retrieval, both directions, every caption counted; {parts_of}{decoded:,} of {images:,} images",
        f"{total:,} captions in {len(sizes)} language{'s' * (len(sizes) != 1)}",
        f"{repeated:,} captions repeat another image's (not positives)",
    ]
    if empty:
        lines.append(f"{empty:,} empty captions left out")
    return ("NOT COMPLETE: " if decoded < images else "") + ", ".join(lines)


def read_pool(data_dir: str | pathlib.Path, split: str) -> CaptionedImages:
    """Reads the captions of one split; the images are read again when they are encoded, so that they need no memory."""
    pool = CaptionedImages(f"split {split!r} of {data_dir}", read=lambda wanted: _read_images(data_dir, split, wanted))
    for record in records.read_records(data_dir, records.IMAGE_TEXT, split):
        if not isinstance(record, records.ImageTextRecord):
            raise UserError(f"The records of split {split!r} in {data_dir} hold no images (feature 'image').")
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


def held_out_images(data_dir: str | pathlib.Path) -> list[str]:
    """Returns the ids of images whose names the data set's dataset.json says were held out of training."""
    path = as_path(data_dir) / "dataset.json"
    return json_field(read_json(path) if path.exists() else {}, "held_out_names", list[str], path, [])


def language_groups(data_dir: str | pathlib.Path) -> dict[str, tuple[str, ...]]:
    """Returns the language groups of the data set's dataset.json, or else the paper's (A.3)."""
    path = as_path(data_dir) / "dataset.json"
    description = read_json(path) if path.exists() else {}
    groups = json_field(description, "language_groups", dict[str, list[str]], path, {})
    return groups or base_config().evaluation.groups.to_dict()
