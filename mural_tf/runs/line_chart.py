"""Lines over the steps of a run, as positions that the page's template draws (`parts.lines`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

POINTS = 400  # the most points of a line

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], title: str) -> dict[str, object] | None:
    """Returns the values that `parts.lines` draws, positions in percent from the left and from the top.

    Args:
      series: {name: points (x >= 0, y)}; points of NaN and infinity are left out.
      title: describes the chart for readers who do not see it; the last values are added.

    Returns:
      {"title", "xs" and "ys": [(label, position)], "lines": [{"name", "path" of an SVG, "single": whether it is only
      one point}]}; `None` if there is nothing to draw.
    """
    lines = {}
    for name, points in series.items():
        finite_points = [(x, y) for x, y in points if is_finite(y)]
        if finite_points:
            lines[name] = _thinned(finite_points)
    if not lines:
        return None
    xs, ys = zip(*itertools.chain.from_iterable(lines.values()))
    right = max(*xs, 1)  # not 0: positions are divided by it
    low = min(*ys, 0.0)
    high = max(ys)
    if high <= low:
        high = low + 1.0  # all values are 0

    def across(x: float) -> str:
        return f"{100 * x / right:.2f}"

    def down(y: float) -> str:
        return f"{100 * (high - y) / (high - low):.2f}"

    drawn_lines = []
    last_values = []
    for name, points in lines.items():
        corners = " L".join(f"{across(x)},{down(y)}" for x, y in points)
        # The horizontal line of no length at the end makes a single point a dot.
        drawn_lines.append({"name": name, "path": f"M{corners} h0", "single": len(points) == 1})
        _, last_value = points[-1]
        last_values.append(f"{name} {last_value:.3g}")
    return {
        "title": f"{title}, at last {', '.join(last_values)}",
        "xs": [(f"{x:,g}", across(x)) for x in ticks(0, right)],
        "ys": [(f"{y:g}", down(y)) for y in ticks(low, high)],
        "lines": drawn_lines,
    }


def is_finite(value: object) -> bool:
    """Whether a value is a number to show."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns about `POINTS` of the points, evenly spaced, with the first and the last one."""
    step = max(1, math.ceil(len(points) / POINTS))
    thinned = points[::step]
    if thinned[-1] is not points[-1]:
        thinned.append(points[-1])
    return thinned


def ticks(low: float, high: float) -> list[float]:
    """Returns round numbers from low to high, at most six."""
    magnitude = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    steps = [magnitude * factor for factor in (0.2, 0.5, 1, 2)]
    step = next(step for step in steps if (high - low) / step <= 5)
    first = math.ceil(low / step - 1e-9)  # a billionth, so that rounding leaves out no end
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]
