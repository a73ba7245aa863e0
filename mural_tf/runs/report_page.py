"""The page with which a run ends: `report.html` in its workdir, one file that can be mailed.

It shows the loss and the recall over the steps, the recall in each language beside what the model had before the run
(rows of step 0 in metrics.jsonl), what the model finds and misses, data, settings, and the time of each stage.
Everything is in the file, pictures and charts too; no script runs, and texts from outside are escaped.
"""

from __future__ import annotations

import html
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from ml_collections import ConfigDict

from mural_tf.analysis.errors import Query, find_queries
from mural_tf.data.pictures import thumbnail_url
from mural_tf.embedder import Embedder
from mural_tf.encoders.towers import takes_features
from mural_tf.errors import UserError
from mural_tf.evaluation.retrieval import Evaluation, read_pool
from mural_tf.files import as_path, read_json, write_whole
from mural_tf.remote_folders import shown
from mural_tf.training.log import duration
from mural_tf.training.workdir import read_metrics

NAME = "report.html"
IMAGES = 300  # of the split, that the examples are searched among
EXAMPLES = 3  # found, and as many missed, in each language shown
SIDE = 96  # pixels of a thumbnail's longer side
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 240, 48, 28  # of a chart and its margins, in pixels
POINTS = 400  # of a line, at most

STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
table { border-collapse: collapse; } th, td { text-align: start; padding: .2rem .8rem .2rem 0; vertical-align: top; }
td.number, th.number { text-align: end; font-variant-numeric: tabular-nums; }
tr { border-bottom: 1px solid var(--line); } td { overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
ul.legend, ol { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .3rem 0; padding: 0; }
.swatch { display: inline-block; width: .8rem; height: .8rem; margin-inline-end: .4rem; border-radius: .2rem; }
.example { display: flex; gap: 1rem; align-items: center; border-bottom: 1px solid var(--line); padding: .4rem 0; }
.example p { width: 16rem; margin: 0; overflow-wrap: anywhere; }
li.right { outline: 3px solid #2a8a3c; } li img { display: block; max-width: 96px; max-height: 96px; background: #fff; }
.quiet { opacity: .75; font-size: .9rem; }
"""
COLOURS = ("#2f6fde", "#d9730d", "#2a8a3c", "#a03fb5", "#c23b3b", "#0f8b8d", "#8a6d1b", "#6b7280")


def write_report_page(
    workdir: pathlib.Path,
    config: ConfigDict,
    evaluation: Evaluation | None,
    embedder: Embedder | None,
    seconds: Mapping[str, float],
) -> pathlib.Path:
    """Writes the page and returns its path.

    Args:
      workdir: of a run whose training is over.
      config: the run's.
      evaluation: of its last step; None: there was none.
      embedder: finds the examples; None: they are left out.
      seconds: stage → its time.
    """
    rows = read_metrics(workdir)
    sections = [
        ("Recall", _summary(rows, evaluation)),
        ("Loss over the steps", line_chart(_losses(rows), "loss")),
        ("Recall over the steps", line_chart(_recalls(rows), "mean recall, %")),
        ("Recall by language", _by_language(rows, evaluation)),
        ("Found and missed", _examples(evaluation, embedder, config)),
        ("Data", _data(config)),
        ("Time", _table(["stage", "time"], [(stage, duration(value)) for stage, value in seconds.items()], 1)),
        ("Settings", _settings(workdir, config)),
    ]
    body = "".join(f"<section><h2>{title}</h2>\n{content}\n</section>\n" for title, content in sections if content)
    write_whole(workdir / NAME, _page(f"{config.model}, {config.train.steps:,} steps", shown(workdir), body))
    return workdir / NAME


def _page(title: str, place: str, body: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{html.escape(title)}</h1>
<p class="quiet">{html.escape(place)}</p>
{body}</body>
</html>
"""


# Numbers.


def training_seconds(rows: Iterable[Mapping]) -> float:
    """Returns the time of all training steps in rows of metrics.jsonl, interruptions left out."""
    total = before = 0
    for row in rows:
        if "train/seconds_per_step" in row:
            total += max(row["step"] - before, 0) * row["train/seconds_per_step"]
            before = row["step"]
    return float(total)


def _summary(rows: list[dict], evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return ""
    source = _of_step(rows, evaluation.name, 0)
    groups = [*evaluation.groups, "all"]
    counts = {**{group: len(members) for group, members in evaluation.groups.items()}, "all": len(evaluation.sizes)}
    lines = []
    for group in groups:
        key = f"{evaluation.name}/{group}/mean_recall"
        lines.append((group, f"{counts[group]:,}", f"{evaluation.metrics[key]:.1f}", _number(source.get(key))))
    heads = ["group", "languages", "mean recall, %", "before this run, %"]
    if not source:
        heads, lines = heads[:3], [line[:3] for line in lines]
    note = f'<p class="quiet">Split {html.escape(evaluation.split)}: {html.escape(evaluation.protocol)}</p>'
    return _table(heads, lines, 1) + note


def _of_step(rows: list[dict], name: str, step: int) -> dict:
    found: dict = {}
    for row in rows:
        if row["step"] == step and any(key.startswith(f"{name}/") for key in row):
            found = row
    return found


def _losses(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    names = dict.fromkeys(key for row in rows for key in row if key.startswith("train/loss"))
    return {name.removeprefix("train/"): [(row["step"], row[name]) for row in rows if name in row] for name in names}


def _recalls(rows: list[dict]) -> dict[str, list[tuple[float, float]]]:
    """The mean recall of groups and of all languages, of each evaluation that was made at two steps or more."""
    single = {"/".join(key.split("/")[:2]) for row in rows for key in row if key.endswith("/recall@1")}
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for key, value in row.items():
            name, _, metric = key.rpartition("/")
            if metric == "mean_recall" and name not in single:
                series.setdefault(name, []).append((row["step"], value))
    return {name: points for name, points in series.items() if len({step for step, _ in points}) > 1}


def _by_language(rows: list[dict], evaluation: Evaluation | None) -> str:
    """Bars of the last evaluation, and of any other that was made before the first step and after the last."""
    if evaluation is None:
        return ""
    charts = [_bars_of(evaluation.name, evaluation.metrics, _of_step(rows, evaluation.name, 0), evaluation)]
    others = dict.fromkeys(key.split("/")[0] for row in rows if row["step"] == 0 for key in row if "/" in key)
    for name in others:
        steps = [row["step"] for row in rows if any(key.startswith(f"{name}/") for key in row)]
        if name not in (evaluation.name, "train") and max(steps):
            bars = _bars_of(name, _of_step(rows, name, max(steps)), _of_step(rows, name, 0), evaluation)
            charts.append(f"<h3>{html.escape(name)}, step {max(steps):,}</h3>{bars}")
    return "".join(charts)


def _bars_of(name: str, now: Mapping, source: Mapping, evaluation: Evaluation) -> str:
    """Bars of each language once, in the last group that has it: of a tuned model in "tuned" or "others"."""
    group_of = dict.fromkeys(evaluation.sizes, "other languages" if evaluation.groups else "")
    group_of.update({language: group for group, members in evaluation.groups.items() for language in members})
    values: dict[str, list] = {group: [] for group in dict.fromkeys([*evaluation.groups, *group_of.values()])}
    for language, group in group_of.items():
        key = f"{name}/{language}/mean_recall"
        if key in now:
            values[group].append((language, now[key], source.get(key)))
    return bar_chart({group: sorted(bars, key=lambda bar: -bar[1]) for group, bars in values.items() if bars})


# Charts.


def line_chart(series: Mapping[str, Sequence[tuple[float, float]]], unit: str) -> str:
    """Returns lines over steps as SVG with a legend, NaN and infinity left out; "" if there is nothing to show."""
    lines = {name: _thinned([(x, y) for x, y in points if _is_finite(y)]) for name, points in series.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return ""
    xs, ys = ([point[i] for points in lines.values() for point in points] for i in (0, 1))
    right, low, high = max(max(xs), 1), min(0.0, *ys), max(ys) if max(ys) > min(0.0, *ys) else min(0.0, *ys) + 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        up = (y - low) / (high - low) * (HEIGHT - BOTTOM - 12)
        return LEFT + x / right * (WIDTH - LEFT - 12), HEIGHT - BOTTOM - up

    marks = [_tick_y(y, place(0, y)[1]) for y in ticks(low, high)] + [
        _tick_x(x, place(x, 0)[0]) for x in ticks(0, right)
    ]
    drawn = [_line(points, place, COLOURS[i % len(COLOURS)]) for i, points in enumerate(lines.values())]
    return _svg(WIDTH, HEIGHT, f"{unit} over steps", [*marks, *drawn]) + _legend(lines)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, math.ceil(len(points) / POINTS))
    return [*points[::step], *(points[-1:] if (len(points) - 1) % step else [])]


def _is_finite(value) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def ticks(low: float, high: float) -> list[float]:
    """Returns round numbers from low to high, at most six."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    step = next(step * factor for factor in (0.2, 0.5, 1, 2) if (high - low) / (step * factor) <= 5)
    return [round(i * step, 10) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _tick_y(value: float, y: float) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>'
    return f'{line}<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'


def _tick_x(value: float, x: float) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{value:,g}</text>'


def _line(points, place, colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    if len(points) == 1:
        x, y = place(*points[0])
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>'


def _legend(lines: Iterable[str]) -> str:
    items = [
        f'<li><span class="swatch" style="background:{COLOURS[i % len(COLOURS)]}"></span>{html.escape(name)}</li>'
        for i, name in enumerate(lines)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def bar_chart(groups: Mapping[str, Sequence[tuple[str, float, float | None]]]) -> str:
    """Returns bars in groups as SVG: (label, value, value before or None); "" if there is nothing to show."""
    groups = {name: [bar for bar in bars if _is_finite(bar[1])] for name, bars in groups.items()}
    values = [value for bars in groups.values() for bar in bars for value in bar[1:] if value is not None]
    if not values:
        return ""
    scale, y, drawn = (WIDTH - 150) / max(*values, 1e-9), 0, []
    for i, (name, bars) in enumerate(group for group in groups.items() if group[1]):
        if name:
            drawn.append(f'<text x="0" y="{y + 20}" font-weight="600">{html.escape(name)}</text>')
            y += 28
        for bar in bars:
            drawn.append(_bar(*bar, y, scale, COLOURS[i % len(COLOURS)]))
            y += 18
    has_before = any(bar[2] is not None for bars in groups.values() for bar in bars)
    note = '<p class="quiet">The upright mark is what the model had before this run.</p>' if has_before else ""
    return _svg(WIDTH, y + 4, "mean recall by language", drawn) + note


def _bar(label: str, value: float, before: float | None, y: int, scale: float, colour: str) -> str:
    width, said = max(value * scale, 0.5), "" if before is None else f" ({value - before:+.1f})"
    bar = f'<rect x="60" y="{y + 3}" width="{width:.1f}" height="12" rx="2" fill="{colour}"/>'
    mark = "" if before is None else f'<rect x="{60 + before * scale - 1:.1f}" y="{y + 1}" width="3" height="16"/>'
    name = f'<text x="54" y="{y + 13}" text-anchor="end">{html.escape(label)}</text>'
    end = 66 + max(width, (before or 0) * scale)
    return f'{name}{bar}{mark}<text x="{end:.1f}" y="{y + 13}">{value:.1f}{said}</text>'


def _svg(width: int, height: int, label: str, drawn: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{html.escape(label)}" fill="currentColor">{"".join(drawn)}</svg>'
    )


# Examples.


def _examples(evaluation: Evaluation | None, embedder: Embedder | None, config: ConfigDict) -> str:
    """Of the language with the highest recall, the one in the middle and the last."""
    if evaluation is None or embedder is None or takes_features(config.image_tower):
        return ""
    try:
        pool = read_pool(config.data.directory, config.evaluation.split)
    except UserError:
        return ""
    total = len(pool.image_numbers)
    wanted = np.unique(np.linspace(0, total - 1, min(total, IMAGES)).round().astype(int)).tolist()
    pictures = list(pool.read(wanted))
    vectors, kept = embedder.encode_image(pictures, on_error="skip", progress=False)
    place = {wanted[number]: row for row, number in enumerate(kept)}
    recall = {
        language: evaluation.metrics[f"{evaluation.name}/{language}/mean_recall"] for language in evaluation.sizes
    }
    best = sorted(recall, key=lambda language: -recall[language])
    parts = [
        _of_language(language, pool, place, [pictures[i] for i in kept], vectors, embedder)
        for language in dict.fromkeys((best[0], best[len(best) // 2], best[-1]))
    ]
    note = f"The three pictures closest to a caption, among {len(kept):,} of the {total:,} of the split"
    return f'<p class="quiet">{note}; the right one is framed.</p>{"".join(parts)}' if len(kept) else ""


def _of_language(language: str, pool, place: dict[int, int], pictures: list, vectors, embedder: Embedder) -> str:
    captions = [(text, place[i]) for text, i in zip(pool.texts[language], pool.owners[language]) if i in place]
    if not captions:
        return ""
    texts = [text for text, _ in captions]
    said = {"language": language} if getattr(embedder, "takes_languages", False) else {}
    encoded = embedder.encode_text(texts, progress=False, **said)
    queries = find_queries("text_to_image", [(vectors, encoded)], np.array([owner for _, owner in captions]))
    found = _spread([query for query in queries if query.found[0].rank <= 1])
    missed = _spread(sorted((q for q in queries if q.found[0].rank > 1), key=lambda query: query.found[0].rank))
    shown_queries = "".join(_example(query, texts[query.number], language, pictures) for query in (*found, *missed))
    return f"<h3>{html.escape(language)}</h3>{shown_queries}"


def _spread(queries: list[Query]) -> list[Query]:
    places = np.unique(np.linspace(0, len(queries) - 1, min(EXAMPLES, len(queries))).round().astype(int))
    return [queries[i] for i in places]


def _example(query: Query, text: str, language: str, pictures: list) -> str:
    rank = query.found[0].rank
    said = "found" if rank <= 1 else f"the right one has rank {rank:g}"
    images = "".join(_picture(pictures[i], i in query.right) for i in query.found[0].top[:3])
    if not set(query.found[0].top[:3]) & query.right:
        images += "<li>…</li>" + "".join(_picture(pictures[i], True) for i in sorted(query.right))
    caption = f'<span dir="auto" lang="{html.escape(language, quote=True)}">{html.escape(text)}</span>'
    return f'<div class="example"><p>{caption}<br><span class="quiet">{said}</span></p><ol>{images}</ol></div>\n'


def _picture(data: bytes, right: bool) -> str:
    try:
        image = f'<img alt="" src="{thumbnail_url(data, SIDE)}">'
    except ValueError:
        image = "<em>cannot be shown</em>"
    return f"<li{' class=right' if right else ''}>{image}</li>"


# Data and settings.


def _data(config: ConfigDict) -> str:
    lines = [("folder", config.data.directory)]
    try:
        described = read_json(as_path(config.data.directory) / "dataset.json")
    except UserError:  # other people's records come without one
        return _table([], lines)
    for key in ("name", "license"):
        lines += [(key, str(described[key]))] if key in described else []
    for part, splits in _items(described.get("counts")):
        for split, counts in _items(splits):
            found = counts if not isinstance(counts, Mapping) else ", ".join(f"{n:,} {x}" for x, n in counts.items())
            lines.append((f"{part}, {split}", f"{found:,}" if isinstance(found, int) else found))
    if isinstance(described.get("languages"), (list, Mapping)):
        lines.append(("languages", ", ".join(sorted(described["languages"]))))
    return _table([], lines)


def _items(value) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, Mapping) else ()


def _settings(workdir: pathlib.Path, config: ConfigDict) -> str:
    lines = [(name, json.dumps(value, default=list)) for name, value in _flat(config.to_dict())]
    try:
        environment = list(_flat(read_json(workdir / "environment.json")))
    except UserError:
        environment = []
    lines += [(name, str(value)) for name, value in environment]
    return f"<details><summary>{len(lines)} settings and versions</summary>{_table([], lines)}</details>"


def _flat(values: Mapping, prefix: str = "") -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]], numbers_from: int = 9) -> str:
    """Returns a table of escaped texts; columns from `numbers_from` on are numbers."""
    kinds = lambda i: ' class="number"' if i >= numbers_from else ""  # noqa: E731
    head = "".join(f"<th{kinds(i)}>{html.escape(text)}</th>" for i, text in enumerate(heads))
    rows = ["".join(f"<td{kinds(i)}>{html.escape(str(text))}</td>" for i, text in enumerate(line)) for line in lines]
    return f"<table>{f'<tr>{head}</tr>' if heads else ''}{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _number(value) -> str:
    return f"{value:.1f}" if _is_finite(value) else "–"
