"""Sentence benchmarks: STS 2017 with its extension, and Tatoeba; with each head of the text tower.

The image-text head is the model's embedding everywhere else; a second head (MURAL's text-text one) adds rows or
metrics that end in its name. Exports hold the image-text head only.
"""

from __future__ import annotations

import pathlib
import re

import numpy as np

from mural_lite.errors import UserError
from mural_lite.text_files import read_lines
from mural_tf.evaluation.request import Request
from mural_tf.evaluation.retrieval import Evaluation, add_groups
from mural_tf.metrics import ranking
from mural_tf.metrics.correlation import spearman

# Groups of languages over which papers average Tatoeba's accuracy, by the codes of its files (ISO 639-3).
# Multilingual USE (Yang et al., 2020).
MUSE_14 = tuple("ara cmn fra deu ita jpn kor nld pol por rus spa tha tur".split())
# XTREME (Hu et al., 2020).
XTREME_36 = tuple(
    """ara heb vie ind jav tgl eus mal tam tel afr nld deu ell ben hin mar urd pes fra ita por spa bul rus jpn kat kor
    tha swh cmn kaz tur est fin hun""".split()
)
# The languages of the set that LASER was trained on, as its README lists them. Papers speak of 82; which of these 83
# they leave out is not written anywhere.
LASER_83 = tuple(
    """afr sqi amh ara hye aze eus bel ben ber bos bre bul cat dtp khm cbk cmn kzj cor hrv ces dan nld mhr epo est fin
    fra glg kat deu ell heb hin hun isl ido ind ina ile gle ita jpn kab kaz kor kur lvs lat lfn lit nds mkd zsm mal mar
    nob oci pes pol por ron rus srp slk slv spa swh swe tgl tam tat tel tha tur uig ukr urd uzb vie wuu yue""".split()
)
GROUPS = {"14": MUSE_14, "36": XTREME_36, "82": LASER_83}

# [ETCL] Tables 3 and 4.
STS_GROUPS = {
    "monolingual": ("en-en", "es-es", "ar-ar"),
    "cross-lingual": ("en-ar", "en-de", "en-tr", "en-es", "en-fr", "en-it", "en-nl"),
}


def sts2017(request: Request) -> list[Evaluation]:
    """Measures STS 2017: 100 x Spearman's r of cosines and human scores of sentence pairs, for each language pair.

    A pair with English is named "en-xx" in both orders of its file. Raises `UserError` for a pair without a file, and
    if too many lines have another form.
    """
    result = Evaluation("sts2017", request.split, "Spearman's r of cosine and human score, x 100", {}, {})
    files = {_pair_name(path): path for path in sorted(request.folder.rglob("STS.*-*.txt"))}
    for pair in _keys_to_evaluate(files, request, "pairs"):
        rows = _read_sts(files[pair], request)
        first, second, scores = zip(*rows)
        result.sizes[pair] = {"pairs": len(rows)}
        for suffix, head in request.text_heads().items():
            left = request.encode_texts(first, head)
            right = request.encode_texts(second, head)
            cosines = np.einsum("nd,nd->n", left, right, dtype=np.float64)
            result.metrics[f"sts2017/{pair}/spearman{suffix}"] = 100.0 * spearman(cosines, np.array(scores))
    for suffix in request.text_heads():
        add_groups(result, STS_GROUPS, f"spearman{suffix}")
    result.notes += request.take_problems(sum(size["pairs"] for size in result.sizes.values()))
    return [result]


def _pair_name(path: pathlib.Path) -> str:
    """Returns the name of a file's pair of languages, English first: "en-ar" for STS.ar-en.txt."""
    first, second = re.fullmatch(r"STS\.(\w+)-(\w+)", path.stem).groups()
    if second == "en":
        first, second = second, first
    return f"{first}-{second}"


def _read_sts(path: pathlib.Path, request: Request) -> list[tuple[str, str, float]]:
    """Returns the (sentence, sentence, score) of a file's lines, which have tabs between the three and no header.

    Lines of another form are reported to `request`. Raises `UserError` for fewer than two rows: none can correlate.
    """
    rows = []
    for number, line in read_lines(path, request.on_problem):
        if not line:
            continue
        try:
            first, second, score = line.split("\t")
            rows.append((first, second, float(score)))
        except ValueError:
            request.on_problem("line that is not sentence, sentence, score", f"{path}:{number}")
    if len(rows) < 2:
        raise UserError(f"{path} has {len(rows)} rated pairs: expected sentence, tab, sentence, tab, score.")
    return rows


def tatoeba(request: Request) -> list[Evaluation]:
    """Measures Tatoeba: the percentage of sentences whose nearest neighbour in the other language translates them.

    Both directions and their mean, as sources differ: LASER measures both, XTREME searches with English
    (`from_english`), and ETCL does not say. A tie for the first place counts as a miss (see `metrics/ranking.py`).
    Raises `UserError` for a language without a file, or files that are not aligned.
    """
    protocol = "accuracy of the nearest neighbour by cosine, both directions and their mean, ties missed"
    result = Evaluation("tatoeba", request.split, protocol, {}, {})
    files = {path.suffix[1:]: path for path in sorted(request.folder.rglob("tatoeba.*-eng.*")) if path.suffix != ".eng"}
    for language in _keys_to_evaluate(files, request, "languages"):
        foreign, english = _read_tatoeba(files[language])
        result.sizes[language] = {"sentences": len(foreign)}
        numbers = np.arange(len(foreign))  # sentence i translates sentence i
        for suffix, head in request.text_heads().items():
            left = request.encode_texts(foreign, head)
            right = request.encode_texts(english, head)
            forward, backward = ranking.ranks_both_ways(left, right, (numbers, numbers))
            to_english = ranking.recall_at(forward, 1)
            from_english = ranking.recall_at(backward, 1)
            key = f"tatoeba/{language}"
            result.metrics[f"{key}/to_english{suffix}"] = to_english
            result.metrics[f"{key}/from_english{suffix}"] = from_english
            result.metrics[f"{key}/accuracy{suffix}"] = (to_english + from_english) / 2
    for suffix in request.text_heads():
        for name in ("to_english", "from_english", "accuracy"):
            add_groups(result, GROUPS, name + suffix)
    return [result]


def _read_tatoeba(path: pathlib.Path) -> tuple[list[str], list[str]]:
    """Returns (a file's sentences, their English in the file ".eng" next to it); `UserError` for unequal numbers."""
    foreign = [text for _, text in read_lines(path)]
    english = [text for _, text in read_lines(path.with_suffix(".eng"))]
    if len(foreign) != len(english) or not foreign:
        raise UserError(
            f"{path} has {len(foreign)} lines and its English side {len(english)}: line i must translate line i. Fetch "
            "them again."
        )
    return foreign, english


def _keys_to_evaluate(files: dict[str, pathlib.Path], request: Request, what: str) -> list[str]:
    """Returns the requested keys of `files`, by default all; `UserError` for others, which calls the keys `what`."""
    unknown = sorted(set(request.languages) - set(files))
    if unknown:
        raise UserError(f"No {', '.join(unknown)} in {request.folder}; its {what}: {', '.join(files)}.")
    return list(request.languages or files)
