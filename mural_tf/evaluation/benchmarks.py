"""The benchmarks by name: which files each needs, where these come from, which protocol options it reads, how it runs.

A benchmark's files lie in `data_dir` itself or in `data_dir/<name>`. `run_benchmark` raises for what is missing;
`available` says which ones a folder holds, and what the others lack. What measures a benchmark is imported when it
runs, so that the list of benchmarks stays fast.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pathlib

from ml_collections import ConfigDict

from mural_tf.errors import UserError
from mural_tf.evaluation.contamination import contamination_notes
from mural_tf.evaluation.protocol import changed_options, check_protocol

ALL = "all"
ONLY_IN_OWN_FOLDER = ("emoji", "wit", "globetrotter")  # their files look like those of other benchmarks


@dataclasses.dataclass(frozen=True)
class Entry:
    """One benchmark.

    `module`: the file of `mural_tf.evaluation` whose function `name` measures it. `needs`: file patterns below its
    folder that must match something; "a|b" is either. `source`: where to get the files. `split`: the default one.
    `options`: the sections of the protocol it reads; `shared`: the options outside sections. `image_sources`: image
    collections its test images are from, for the warning of contamination.
    """

    name: str
    module: str
    summary: str
    needs: tuple[str, ...]
    source: str
    split: str = "test"
    options: tuple[str, ...] = ()
    shared: tuple[str, ...] = ("images", "max_missing", "translations")
    image_sources: tuple[str, ...] = ()

    def missing(self, folder: pathlib.Path) -> list[str]:
        """Returns the patterns that match nothing in `folder`."""
        return [pattern for pattern in self.needs if not any(any(folder.glob(one)) for one in pattern.split("|"))]

    @property
    def measure(self):
        """The function that measures it: a `Request` -> a list of `Evaluation`s."""
        return getattr(importlib.import_module(f"mural_tf.evaluation.{self.module}"), self.name)


_COCO = "MS-COCO 2014 images val2014/ (cocodataset.org)"
_NAMES = "class_names.<language>.txt and templates.<language>.txt, see docs/evaluation.md"
_RECORDS = Entry(
    "retrieval",
    "captioned",
    "image-text retrieval on any image-text TFRecords",
    ("image_text/*.tfrecord",),
    "python -m mural_tf convert writes them from your data (docs/data.md)",
    shared=("max_missing", "translations"),
)
CATALOGUE = {
    entry.name: entry
    for entry in (
        _RECORDS,
        dataclasses.replace(
            _RECORDS,
            name="emoji",
            summary="the emoji benchmark: image-text retrieval in 25 or 122 languages",
            source="python -m mural_tf emoji --output=…",
            image_sources=("emoji",),
        ),
        dataclasses.replace(
            _RECORDS,
            name="wit",
            summary="WIT: image-text retrieval, well- and under-resourced languages (MURAL Table 3)",
            source="python -m mural_tf convert, from WIT's TSV files and images you downloaded "
            "(github.com/google-research-datasets/wit); MURAL's own splits were never released",
            image_sources=("wikipedia",),
        ),
        Entry(
            "multi30k",
            "captioned",
            "Multi30K: image-text retrieval in en de fr cs (MURAL Table 2, ETCL Table 1, MULE Table 2)",
            ("data/task1/raw|task1/raw", "data/task2/raw|task2/raw"),
            "git clone https://github.com/multi30k/dataset, and Flickr30K's images (on request from its authors) as "
            "flickr30k-images/",
            split="test_2016_flickr",
            options=("multi30k",),
            image_sources=("flickr30k",),
        ),
        Entry(
            "flickr30k",
            "captioned",
            "Flickr30K, Karpathy and Li's split: image-text retrieval in English",
            ("dataset_flickr30k.json",),
            "caption_datasets.zip of Karpathy and Li (cs.stanford.edu/people/karpathy/deepimagesent), and Flickr30K's "
            "images as flickr30k-images/",
            image_sources=("flickr30k",),
        ),
        Entry(
            "coco",
            "captioned",
            "MS-COCO 5K and 1K: image-text retrieval, with STAIR or YJ Japanese and further captions files",
            ("dataset_coco.json",),
            f"caption_datasets.zip of Karpathy and Li, {_COCO}; Japanese: stair_captions_v1.2_val.json "
            "(github.com/STAIR-Lab-CIT/STAIR-captions); others: captions_<language>.json or .tsv",
            options=("coco",),
            image_sources=("coco_val2014",),
        ),
        Entry(
            "coco_cn",
            "captioned",
            "COCO-CN: image-text retrieval in Chinese",
            ("coco-cn_test.txt", "imageid.human-written-caption.txt"),
            "github.com/li-xirong/coco-cn (on request), and MS-COCO 2014 images train2014/, val2014/",
            options=("coco_cn",),
            image_sources=("coco_train2014", "coco_val2014"),
        ),
        Entry(
            "mule_coco",
            "captioned",
            "MULE's MS-COCO: image-text retrieval in en ja zh on images you list (MULE Table 3)",
            ("*_images.txt", "captions_*2014.json", "yjcaptions*.json", "imageid.human-written-caption.txt"),
            "MS-COCO's annotations_trainval2014.zip, yjcaptions26k.zip (github.com/yahoojapan/YJCaptions), COCO-CN; "
            f"{_COCO} and train2014/",
            image_sources=("coco_train2014", "coco_val2014"),
        ),
        Entry(
            "xtd",
            "captioned",
            "XTD: image-text retrieval in seven to eleven languages (MURAL Table 4)",
            ("XTD10/test_image_names.txt", "XTD10/test_1kcaptions_*.txt"),
            "git clone https://github.com/adobe-research/Cross-lingual-Test-Dataset-XTD10, and MS-COCO 2014 images "
            "train2014/, val2014/",
            image_sources=("coco_train2014", "coco_val2014"),
        ),
        Entry(
            "xm3600",
            "captioned",
            "Crossmodal-3600: image-text retrieval in 36 languages",
            ("captions.jsonl",),
            "captions.zip and images.tgz of google.github.io/crossmodal-3600",
            options=("xm3600",),
            image_sources=("open_images",),
        ),
        Entry(
            "cxc",
            "cxc",
            "Crisscrossed Captions: retrieval within and across modalities, and correlations (MURAL Tables 5, 6)",
            tuple(f"data/{kind}_*.csv|{kind}_*.csv" for kind in ("sts", "sis", "sits"))
            + ("dataset_coco.json|captions_val2014.json|data/dataset_coco.json|data/captions_val2014.json",),
            "git clone https://github.com/google-research-datasets/Crisscrossed-Captions; captions_val2014.json of "
            f"annotations_trainval2014.zip; {_COCO}",
            options=("cxc",),
            shared=("images", "max_missing"),
            image_sources=("coco_val2014",),
        ),
        Entry(
            "sts2017",
            "sentences",
            "STS 2017 and its extension: sentence similarity in 3 + 7 pairs of languages (ETCL Tables 3, 4)",
            ("STS2017-extended/STS.*-*.txt|STS.*-*.txt",),
            "STS2017-extended.zip of sbert.net/datasets",
            shared=("max_missing",),
        ),
        Entry(
            "tatoeba",
            "sentences",
            "Tatoeba: sentence retrieval between English and 112 languages",
            ("tatoeba.*-eng.eng|v1/tatoeba.*-eng.eng|data/tatoeba/v1/tatoeba.*-eng.eng",),
            "data/tatoeba/v1 of github.com/facebookresearch/LASER",
            shared=(),
        ),
        Entry(
            "imagenet",
            "zero_shot",
            "ImageNet, zero-shot classification in any language (ETCL Table 2)",
            ("val/*", "class_names.*.txt|babel_imagenet.json"),
            f"ILSVRC2012's validation images in a folder for each class, val/n01440764/…; {_NAMES}",
            split="val",
            shared=("max_missing",),
            image_sources=("imagenet",),
        ),
        Entry(
            "cifar100",
            "zero_shot",
            "CIFAR-100, zero-shot classification in any language (ETCL Table 2)",
            ("cifar-100-python/test", "cifar-100-python/meta"),
            f"cifar-100-python.tar.gz of cs.toronto.edu/~kriz; {_NAMES}",
            shared=("max_missing",),
            image_sources=("cifar",),
        ),
        Entry(
            "sun397",
            "zero_shot",
            "SUN397, zero-shot classification in any language (ETCL Table 2), over all its images",
            ("SUN397/ClassName.txt",),
            f"SUN397.tar.gz of vision.princeton.edu/projects/2010/SUN; {_NAMES}",
            split="all",
            shared=("max_missing",),
            image_sources=("sun",),
        ),
        Entry(
            "food101",
            "zero_shot",
            "Food-101, zero-shot classification in any language (ETCL Table 2)",
            ("food-101/meta/test.json", "food-101/images"),
            f"food-101.tar.gz of data.vision.ee.ethz.ch/cvl/datasets_extra/food-101; {_NAMES}",
            shared=("max_missing",),
            image_sources=("food101",),
        ),
        Entry(
            "imagenet_knn",
            "zero_shot",
            "ImageNet, nearest neighbours among the training images (ALIGN; ETCL Table 10)",
            ("train/*", "val/*"),
            "ILSVRC2012's training and validation images in a folder for each class",
            split="val",
            shared=("max_missing",),
            image_sources=("imagenet",),
        ),
        Entry(
            "globetrotter",
            "globetrotter",
            "Globetrotter's translation of sentences and words by retrieval, on any parallel sentences",
            ("*.*.txt|image_text/*.tfrecord",),
            "files of aligned lines, <name>.<language>.txt (globetrotter.cs.columbia.edu has the paper's), or "
            "TFRecords whose captions share groups, such as the emoji benchmark",
            options=("globetrotter",),
            shared=(),
        ),
    )
}


def describe_catalogue() -> str:
    """Returns the list of benchmarks for `--list`: what each is, the files it needs, where to get them."""
    return "\n".join(
        f"{entry.name}\n    {entry.summary}\n    needs {', '.join(entry.needs)}\n    from {entry.source}"
        for entry in CATALOGUE.values()
    )


def run_benchmark(name: str, request):
    """Runs one benchmark, as the `Request` says, and returns its `Evaluation`s (MS-COCO has two: 5K and 1K).

    Raises:
      UserError: no such benchmark, or files missing (with where to get them).
    """
    entry = _entry(name)
    check_protocol(request.protocol)
    request.folder = check_files(name, request.folder)
    request.split = request.split or entry.split
    warnings = contamination_notes(name, entry.image_sources, request.split, request.folder, request.embedder)
    evaluations = entry.measure(request)
    options = changed_options(request.protocol)
    for evaluation in evaluations:
        evaluation.notes = [*warnings, *evaluation.notes]
        if options:
            evaluation.protocol += "; " + ", ".join(f"{key}={value}" for key, value in sorted(options.items()))
    return evaluations


def check_files(name: str, data_dir: pathlib.Path) -> pathlib.Path:
    """Returns the benchmark's folder; raises `UserError` if files are missing, with where to get them."""
    entry = _entry(name)
    folder = _folder(entry, data_dir)
    missing = entry.missing(folder)
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}, which the benchmark {name!r} needs. Get it: {entry.source}."
        )
    return folder


def _entry(name: str) -> Entry:
    """Returns a benchmark's entry; raises `UserError` with the nearest name if there is none."""
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"Unknown benchmark {name!r}: {hint}There are {', '.join(CATALOGUE)}, and {ALL}.")
    return CATALOGUE[name]


def _folder(entry: Entry, data_dir: pathlib.Path) -> pathlib.Path:
    """Returns `data_dir/<name>` if it is there, `data_dir` otherwise; raises `UserError` if neither is."""
    inside = data_dir / entry.name
    if inside.is_dir():
        return inside
    if not data_dir.is_dir():
        raise UserError(f"The data folder {data_dir} does not exist. For {entry.name!r}: {entry.source}.")
    return data_dir


def available(data_dir: pathlib.Path) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the benchmarks that `data_dir` holds, and those that it does not, with the files they lack.

    TFRecords in `data_dir` itself are run once, as "retrieval"; others need a folder of their name.
    """
    if not data_dir.is_dir():
        raise UserError(f"The data folder {data_dir} does not exist.")
    ready, lacking = [], {}
    for name, entry in CATALOGUE.items():
        folder = _folder(entry, data_dir)
        if name in ONLY_IN_OWN_FOLDER and folder == data_dir:
            lacking[name] = [f"{name}/"]
            continue
        missing = entry.missing(folder)
        if missing:
            lacking[name] = missing
        else:
            ready.append(name)
    return ready, lacking


def check_options(name: str, protocol: ConfigDict) -> None:
    """Raises `UserError` for an option that the benchmark does not read, or a value that is not a choice."""
    check_protocol(protocol)
    entry = _entry(name)
    read = {*entry.options, *entry.shared}
    unread = [key for key in changed_options(protocol) if key.split(".")[0] not in read]
    if unread:
        raise UserError(
            f"The benchmark {name!r} does not read --protocol.{unread[0]}; it reads "
            f"{', '.join(f'--protocol.{name}' for name in sorted(read))}."
        )
