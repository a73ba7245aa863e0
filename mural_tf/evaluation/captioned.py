"""Image-text retrieval benchmarks: the images and captions of each.

Folders of image-text records, and benchmarks that come as caption files and folders of images: Multi30K, Flickr30K,
Flickr8k, MS-COCO with its captions in other languages, COCO-CN, XTD, Crossmodal-3600. The protocol itself is in
`retrieval.py`, the reading of the files in `mural_tf.data.caption_files`.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from mural_lite import text_files
from mural_lite.errors import UserError
from mural_lite.files import json_field
from mural_lite.text_files import canonical_language
from mural_tf.data import caption_files
from mural_tf.data.caption_files import Caption
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import CaptionedImages, Evaluation

COCO_IMAGES = 5000  # of the test split
COCO_FOLD = 1000  # of each of its five folds
XTD_IMAGES = 1000
MULTI30K_LANGUAGES = ("en", "de", "fr", "cs")


def retrieval(request: Request) -> list[Evaluation]:
    """Measures image-text retrieval on any folder of image-text TFRecords."""
    return request.measure_records("retrieval")


def emoji(request: Request) -> list[Evaluation]:
    """Measures the emoji benchmark, a folder of records."""
    return request.measure_records("emoji")


def wit(request: Request) -> list[Evaluation]:
    """Measures WIT, converted to records."""
    return request.measure_records("wit")


def multi30k(request: Request) -> list[Evaluation]:
    """Measures Multi30K; images of test_2016 have five captions in en and de, one in fr and cs [MURAL, ETCL, MULE].

    Several splits are one pool: `--split=train,val,test_2016_flickr`.
    """
    task = 1 if request.protocol.multi30k.captions == "one" else None  # `None`: five where they exist
    captions = [_read_multi30k(request, split, task) for split in request.split.split(",")]
    pool = request.file_pool(itertools.chain.from_iterable(captions), f"Multi30K, {request.split}")
    return request.measure(pool, "multi30k")


def _read_multi30k(request: Request, split: str, task: int | None) -> Iterator[Caption]:
    """Yields a split's captions of Multi30K's `task`, 1 or 2; `None`: task 2 in languages that have it, else task 1.

    Raises `UserError` if no language has the split.
    """
    root = request.folder
    if (root / "data").is_dir():
        root = root / "data"
    raw = root / "task1" / "raw"
    file_name = "test_2016_flickr" if split == "test_2016" else split  # the name in task 2, and in task 1
    languages = [language for language in MULTI30K_LANGUAGES if list(raw.glob(f"{file_name}.{language}*"))]
    if not languages:
        splits = sorted({path.name.split(".")[0] for path in raw.glob("*.en*")})
        raise UserError(f"{root} has no split {split!r}; it has {', '.join(splits) or 'none'}.")
    for language in languages:
        yield from caption_files.read_multi30k(request.folder, split, language, task, request.on_problem)


FLICKR8K = {  # {language: where its captions may lie: below a folder of clones, or in the folder itself}
    "en": ("captions.txt", "data/captions.txt", "*/data/captions.txt", "Flickr8k.token.txt"),
    "ar": ("Flickr8k.arabic.full.txt", "*/data/Flickr8k_text/Flickr8k.arabic.full.txt"),
}


def flickr8k(request: Request) -> list[Evaluation]:
    """Measures Flickr8k: five English captions per photograph, and three Arabic captions if their file is there.

    A split (train, dev or test) is the list of names in Flickr_8k.<split>Images.txt, next to a file of captions; "all"
    are all photographs. Raises `UserError` without a caption of the split.
    """
    captions = []
    names_of_split = set()
    for language, patterns in FLICKR8K.items():
        paths = []
        for pattern in patterns:
            paths += sorted(request.folder.glob(pattern))
        if not paths:
            continue
        # The same captions may lie at several places: the first pattern goes before the others.
        captions += caption_files.read_flickr8k(paths[0], language, request.on_problem)
        names_file = paths[0].with_name(f"Flickr_8k.{request.split}Images.txt")
        if names_file.is_file():
            names_of_split |= {line.strip() for _, line in text_files.read_lines(names_file)}
    if request.split != "all":
        captions = [caption for caption in captions if caption.image_file in names_of_split]
    if not captions:
        raise UserError(f"{request.folder} has no Flickr_8k.{request.split}Images.txt with the split's photographs.")
    return request.measure(request.file_pool(captions, f"Flickr8k, {request.split}"), "flickr8k")


def flickr30k(request: Request) -> list[Evaluation]:
    """Measures Flickr30K in English: the five captions of each image of Karpathy and Li's split."""
    captions = caption_files.read_karpathy(
        request.folder / "dataset_flickr30k.json", request.split, on_problem=request.on_problem
    )
    return request.measure(request.file_pool(captions, f"Flickr30K, {request.split}"), "flickr30k")


def coco(request: Request) -> list[Evaluation]:
    """Measures MS-COCO 5K, and 1K as the mean over folds of 1,000 images in file order, or on the first fold.

    English captions come from Karpathy and Li's file. Captions in other languages are joined by COCO's image id, and a
    note says which language does not caption every image. A split of fewer than 1,000 images gives no 1K.
    """
    options = request.protocol.coco
    english = list(
        caption_files.read_karpathy(
            request.folder / "dataset_coco.json",
            request.split,
            captions_per_image=options.captions_per_image or None,  # 0: all
            on_problem=request.on_problem,
        )
    )
    pool = request.file_pool(english, f"MS-COCO, {request.split}")
    images = len(pool.image_numbers)
    for captions in _coco_translations(request):
        _join(pool, captions)
    pool.notes += request.take_problems(sum(map(len, pool.texts.values())))
    _note_coverage(pool)
    views = {"coco_5k": [np.arange(images)]}
    folds = [np.arange(begin, begin + COCO_FOLD) for begin in range(0, images - COCO_FOLD + 1, COCO_FOLD)]
    if options.one_k == "first":
        folds = folds[:1]
    if folds:
        views["coco_1k"] = folds
    if images != COCO_IMAGES:
        pool.notes.append(f"The split {request.split} has {images:,} images; MS-COCO's test has {COCO_IMAGES:,}.")
    return request.measure(pool, "coco_5k", views=views)


def _coco_translations(request: Request) -> Iterator[Iterable[Caption]]:
    """Yields the captions of each file in another language than English, a reader per file."""
    japanese_files = ("yjcaptions*.json",)
    if request.protocol.coco.japanese == "stair":
        japanese_files = ("stair_captions*_val.json", "stair_captions*_train.json")
    for pattern in japanese_files:
        for path in sorted(request.folder.glob(pattern)):
            yield caption_files.read_coco(path, "ja", request.on_problem)
    for path in sorted(request.folder.glob("captions_*.json")):
        if path.stem not in ("captions_val2014", "captions_train2014"):  # MS-COCO's own, in English
            yield caption_files.read_coco(path, path.stem.removeprefix("captions_"), request.on_problem)
    for path in sorted(request.folder.glob("captions_*.tsv")):
        yield read_tsv(path, path.stem.removeprefix("captions_"))


def read_tsv(path: pathlib.Path, language: str) -> Iterator[Caption]:
    """Yields the captions of lines "IMAGE[TAB]CAPTION"; IMAGE is COCO's id or a file name that ends in the id.

    Raises `UserError` for a line of another form.
    """
    language = canonical_language(language)
    for number, line in text_files.read_lines(path):
        if not line:
            continue
        image, tab, text = line.partition("\t")
        identity = _coco_id(image)
        if not tab or not identity.isdigit():
            raise UserError(f"{path}:{number}: expected COCO image id, tab, caption; got {line[:60]!r}.")
        yield Caption(image, identity, text_files.clean(text), language, f"{path}:{number}")


def _coco_id(name: str) -> str:
    """Returns COCO's image id in an id or a file name: "42" for "COCO_val2014_000000000042.jpg"."""
    stem = pathlib.PurePosixPath(name.strip()).stem
    return stem.rsplit("_", 1)[-1].lstrip("0")


def _join(pool: CaptionedImages, captions: Iterable[Caption]) -> None:
    """Adds to `pool` the captions whose image it has already."""
    for caption in captions:
        if caption.image_id in pool.image_numbers:
            pool.add(caption.image_id, caption.caption, caption.language)


def _note_coverage(pool: CaptionedImages) -> None:
    """Adds a note to a pool for each language that does not caption all of its images."""
    for language, owners in pool.owners.items():
        covered = len(set(owners))
        if covered < len(pool.image_numbers):
            pool.notes.append(
                f"{language} captions {covered:,} of the {len(pool.image_numbers):,} images: its pool is smaller."
            )


def coco_cn(request: Request) -> list[Evaluation]:
    """Measures COCO-CN: its test images, with one to a few Chinese captions each."""
    captions = caption_files.read_coco_cn(
        request.folder, request.split, request.protocol.coco_cn.captions, request.on_problem
    )
    return request.measure(request.file_pool(captions, f"COCO-CN, {request.split}"), "coco_cn")


def mule_coco(request: Request) -> list[Evaluation]:
    """Measures MULE's MS-COCO: images captioned in English, Japanese (YJ Captions) and Chinese (COCO-CN).

    The authors' random 1,000 test images are not published, so `test_images.txt` lists yours: COCO ids or file names.
    """
    list_file = request.folder / f"{request.split}_images.txt"
    image_ids = {_coco_id(line) for _, line in text_files.read_lines(list_file) if line}
    sources = []
    for language, pattern in (("en", "captions_*2014.json"), ("ja", "yjcaptions*.json")):
        for path in sorted(request.folder.glob(pattern)):
            sources.append(caption_files.read_coco(path, language, request.on_problem))
    for split in ("train", "val", "test"):
        if (request.folder / f"coco-cn_{split}.txt").is_file():
            sources.append(caption_files.read_coco_cn(request.folder, split, on_problem=request.on_problem))
    captions = itertools.chain.from_iterable(sources)
    captions = (caption for caption in captions if caption.image_id in image_ids)
    pool = request.file_pool(captions, f"MS-COCO, {list_file.name}")
    if len(pool.image_numbers) < len(image_ids):
        captioned = f"{len(pool.image_numbers):,} of the {len(image_ids):,} images of {list_file.name}"
        pool.notes.append(f"NOT COMPLETE: only {captioned} have a caption.")
    _note_coverage(pool)
    return request.measure(pool, "mule_coco")


def xtd(request: Request) -> list[Evaluation]:
    """Measures XTD: 1,000 images of MS-COCO, one caption per image and language.

    MURAL reports Recall@10 (text to image) of the group "mural-7". Raises `UserError` for another number of images.
    """
    names = request.folder / "XTD10" / "test_image_names.txt"
    images = sum(1 for _ in text_files.read_lines(names))
    if images != XTD_IMAGES:
        raise UserError(f"{names} names {images} images; XTD has {XTD_IMAGES}: fetch it again.")
    captions = {}
    for path in sorted(request.folder.glob("*/test_1kcaptions_*.txt")):
        language = canonical_language(path.stem.removeprefix("test_1kcaptions_"))  # the jp of STAIR/ is ja
        captions[language] = caption_files.read_aligned(path, names, language, request.on_problem)
    pool = request.file_pool(itertools.chain.from_iterable(captions.values()), "XTD")
    return request.measure(pool, "xtd", groups={"mural-7": ("it", "es", "ru", "zh", "pl", "tr", "ko")})


def xm3600(request: Request) -> list[Evaluation]:
    """Measures Crossmodal-3600: all captions of each image and language, or, as CLIP_benchmark, the first."""
    most = 1 if request.protocol.xm3600.captions == "first" else None
    captions = _read_xm3600(request.folder / "captions.jsonl", most)
    return request.measure(request.file_pool(captions, "Crossmodal-3600"), "xm3600")


def _read_xm3600(path: pathlib.Path, most: int | None) -> Iterator[Caption]:
    """Yields the first `most` captions, or with `None` all, of each image and language of captions.jsonl at `path`."""
    for number, line in text_files.read_lines(path):
        if not line:
            continue
        location = f"{path}:{number}"
        try:
            entry = json.loads(line)
            key = entry["image/key"]
            languages = {code: fields for code, fields in entry.items() if isinstance(fields, dict)}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{location}: no line of Crossmodal-3600's captions ({error!r}).") from None
        for code, fields in languages.items():
            language = canonical_language(code)
            for text in json_field(fields, "caption", list[str], location)[:most]:
                yield Caption(f"{key}.jpg", key, text_files.clean(text), language, location)
