"""Pages for people: HTML without scripts; all but the server's are one file that needs nothing outside it.

A page's template is in the folder of the code that computes its values; the parts that pages share are in
`templates/`. Every text is escaped.
"""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Mapping, Sequence

from mural_lite.printable import visible

TEMPLATES = pathlib.Path(__file__).with_name("templates")
POINTS = 400  # of a line, at most


def render(template: pathlib.Path, **values) -> str:
    """Returns a page. Raises `jinja2.UndefinedError` for a value that the template needs and does not get."""
    return _environment(template.parent).get_template(template.name).render(**values)


@functools.cache
def _environment(folder: pathlib.Path):
    import jinja2  # only where a page is made

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def line_chart(series: Mapping[str, Sequence[tuple[float, float]]], title: str) -> dict[str, object] | None:
    """Returns what `parts.lines` draws: places in percent, from the left and from above; None if nothing can be drawn.

    Args:
      series: name -> points (x >= 0, y); NaN and infinity are left out.
      title: describes the chart for readers who do not see it; the last values are added.
    """
    lines = {name: _thinned([point for point in points if is_finite(point[1])]) for name, points in series.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    xs, ys = zip(*(point for points in lines.values() for point in points))
    right, low = max(*xs, 1), min(*ys, 0.0)
    high = max(ys) if max(ys) > low else low + 1.0

    def across(x: float) -> str:
        return f"{100 * x / right:.2f}"

    def down(y: float) -> str:
        return f"{100 * (high - y) / (high - low):.2f}"

    return {
        "title": f"{title}, at last {', '.join(f'{name} {points[-1][1]:.3g}' for name, points in lines.items())}",
        "xs": [(f"{x:,g}", across(x)) for x in ticks(0, right)],
        "ys": [(f"{y:g}", down(y)) for y in ticks(low, high)],
        "lines": [
            # A line of no length at the end makes a single point a dot.
            {"name": name, "path": "M" + " L".join(f"{across(x)},{down(y)}" for x, y in points) + " h0",
             "single": len(points) == 1}
            for name, points in lines.items()
        ],
    }  # fmt: skip


def is_finite(value: object) -> bool:
    """Whether a value is a number to show."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, math.ceil(len(points) / POINTS))
    return [*points[::step], *(points[-1:] if (len(points) - 1) % step else [])]


def ticks(low: float, high: float) -> list[float]:
    """Returns round numbers from low to high, at most six."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    step = next(step * factor for factor in (0.2, 0.5, 1, 2) if (high - low) / (step * factor) <= 5)
    return [round(i * step, 10) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
