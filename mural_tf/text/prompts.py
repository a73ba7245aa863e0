"""Prompts: names of classes in templates, as zero-shot classification has them (CLIP, Radford et al., 2021, §3.1.4)."""

from __future__ import annotations

from collections.abc import Sequence

PLACES = ("{}", "{c}")  # CLIP's files mark the name's place by the one, CLIP_benchmark's by the other


def fill_templates(labels: Sequence[str], templates: Sequence[str]) -> list[str]:
    """Returns C * T prompts: every label in every template, label by label.

    Raises `ValueError` for an empty list or a template that has no place for the label, and `TypeError` for a single
    string instead of a list.

    >>> fill_templates(["cat", "red fox"], ["{}", "a photo of a {}."])
    ['cat', 'a photo of a cat.', 'red fox', 'a photo of a red fox.']
    """
    for name, values in (("labels", labels), ("templates", templates)):
        if isinstance(values, str) or not all(isinstance(value, str) for value in values):
            raise TypeError(f"{name} must be a list of str; wrap a single one: [{name[:-1]}].")
        if not len(values):
            raise ValueError(f"{name} is empty: expected at least one.")
    places = [next((place for place in PLACES if place in template), None) for template in templates]
    if None in places:
        raise ValueError(f"The template {templates[places.index(None)]!r} has no place for the label: write {{}}.")
    # Not str.format: a label or a template may hold other braces.
    return [template.replace(place, label) for label in labels for template, place in zip(templates, places)]
