"""ImageNet by nearest neighbours, the protocol of ALIGN (Jia et al., 2021, footnote 3).

For each validation image the nearest training images by cosine of the image embedding; Recall@K is the share of
validation images whose class is among the first K. Recall@1 is 1-NN accuracy: nothing votes. The paper does not say
whether its embedding is projected; ours is the one that is searched and exported.
"""

from __future__ import annotations

import pathlib

import numpy as np

from mural_tf.config import ConfigurationError
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.result import Evaluation
from mural_tf.metrics.nearest import nearest
from mural_tf.metrics.ranking import CUTOFFS


def imagenet_knn(request: Request) -> list[Evaluation]:
    """Searches the training images with every validation image."""
    queries, query_classes, notes = _encode(request, request.split)
    candidates, candidate_classes, more = _encode(request, "train")
    names = np.unique(np.concatenate([query_classes, candidate_classes]))
    unknown = sorted(set(query_classes) - set(candidate_classes))
    if unknown:
        raise ConfigurationError(f"{len(unknown)} classes of {request.split}/ are not in train/, such as {unknown[0]}.")
    found = candidate_classes[nearest(queries, candidates, min(max(CUTOFFS), len(candidates)))]  # [Q, K]
    hits = found == query_classes[:, None]
    metrics = {
        f"imagenet_knn/image_to_image/recall@{k}": 100.0 * float(hits[:, :k].any(axis=1).mean()) for k in CUTOFFS
    }
    sizes = {"queries": len(queries), "candidates": len(candidates), "classes": len(names)}
    protocol = (
        f"class of the nearest training images by cosine; {len(queries):,} queries, {len(candidates):,} candidates"
    )
    prefix = "NOT COMPLETE: " if notes or more else ""
    return [
        Evaluation(
            "imagenet_knn", request.split, prefix + protocol, metrics, {"image_to_image": sizes}, notes=notes + more
        )
    ]


def _encode(request: Request, split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    paths, classes = list_class_folders(request.folder / split)
    embeddings, kept, notes = request.encode_images(paths, f"ImageNet {split}")
    return embeddings, np.array(classes)[kept], notes


def list_class_folders(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[str]]:
    """Returns the files of <folder>/<class>/ in order, and the class of each."""
    paths = [path for sub in sorted(folder.iterdir()) if sub.is_dir() for path in sorted(sub.iterdir())]
    if not paths:
        raise ConfigurationError(f"{folder} holds no folders of images: expected {folder}/n01440764/….JPEG.")
    return paths, [path.parent.name for path in paths]
