"""What an evaluation returns, whatever its benchmark: numbers, and everything needed to compare them with others'."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Evaluation:
    """Numbers of one benchmark and what they were measured on.

    `metrics`: `<name>/<row>/<metric>` -> number, where the row is a language, a group, a task or a pair of languages.
    `sizes`: row -> what was counted there, such as {"images": 1000, "captions": 5000}. `groups`: group -> its languages
    that were evaluated; "all" is not in it. `notes`: what a reader must know to judge the numbers, a sentence each.
    """

    name: str
    split: str
    protocol: str
    metrics: dict[str, float]
    sizes: dict[str, dict[str, int]]
    groups: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
