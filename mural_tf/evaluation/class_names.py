"""Class names and prompt templates of zero-shot classification, in any language, from files.

    class_names.<language>.txt   a name a line, in the order of the labels; an empty line: no name for this class
    templates.<language>.txt     a template a line, with {} or {c} where the name goes

For ImageNet also the two files of the clip-benchmark package: babel_imagenet.json ({"DE": [[class numbers], [names]],
…}) and nllb_dist13b_prompts.json ({"deu_Latn": [templates], …} or by two-letter codes). A language needs names; where
it has no templates, the names alone are encoded, which is noted.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

from mural_tf.config import ConfigurationError
from mural_tf.data.text_files import canonical_language, read_lines

BABEL, NLLB = "babel_imagenet.json", "nllb_dist13b_prompts.json"


@dataclasses.dataclass
class Prompts:
    """One language: class number -> name, and templates with {} for the name."""

    names: dict[int, str]
    templates: list[str]

    def texts(self, number: int) -> list[str]:
        """Returns the class's name in every template."""
        return [template.replace("{c}", "{}").replace("{}", self.names[number]) for template in self.templates]


def read_prompts(folder: pathlib.Path, classes: int, english: list[str] | None) -> dict[str, Prompts]:
    """Returns language -> prompts.

    Args:
      folder: of the files above.
      classes: how many there are.
      english: the data set's own names, used where there is no class_names.en.txt.

    Raises:
      ConfigurationError: a wrong number of names, a template without a place for the name, no names at all.
    """
    names: dict[str, dict[int, str]] = {"en": dict(enumerate(english))} if english else {}
    if (folder / BABEL).is_file():
        for code, (numbers, babel) in _read_json(folder / BABEL).items():
            names[canonical_language(code.lower())] = dict(zip(map(int, numbers), babel))
    for path in sorted(folder.glob("class_names.*.txt")):
        lines = [line or "" for _, line in read_lines(path)]
        if len(lines) != classes:
            raise ConfigurationError(f"{path} has {len(lines)} lines; there are {classes} classes, a line each.")
        names[_language(path)] = {number: line for number, line in enumerate(lines) if line.strip()}
    if not names:
        raise ConfigurationError(f"{folder} has no class names: write {folder / 'class_names.en.txt'}, a name a line.")
    templates = _read_templates(folder)
    return {language: Prompts(known, templates.get(language, ["{}"])) for language, known in names.items()}


def _read_templates(folder: pathlib.Path) -> dict[str, list[str]]:
    templates = {}
    if (folder / NLLB).is_file():
        for code, lines in _read_json(folder / NLLB).items():
            templates[canonical_language(code.lower().split("_")[0])] = lines
    for path in sorted(folder.glob("templates.*.txt")):
        templates[_language(path)] = [line for _, line in read_lines(path) if line]
    for language, lines in templates.items():
        without = [line for line in lines if "{}" not in line and "{c}" not in line]
        if without or not lines:
            raise ConfigurationError(f"A template in {language} has no {{}} for the name: {without[:1] or 'no line'}.")
    return templates


def _language(path: pathlib.Path) -> str:
    return canonical_language(path.name.split(".")[1])


def _read_json(path: pathlib.Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}).") from None
