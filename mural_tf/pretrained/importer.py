"""One family of weights, as `importers.py` takes it: each family's file ends with its `Importer`."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

TEXT = ("text_encoder", "image_text_head", "text_text_head")  # the parts of a model of only texts
TWO_TOWERS = ("image_encoder", "text_encoder", "image_text_head", "log_temperature")


@dataclasses.dataclass(frozen=True)
class Importer:
    """One family of weights.

    Args:
      parts: the parts that it fills, as `DualEncoder.weights_by_part` names them.
      configure: a function of (weights, config) that sets `config` by the files.
      load_weights: a function of (weights, model, config, parts) that fills `parts` of the model.
      vocabulary: a function of (weights, config) that returns the lines by id and sets how they are used in `config`;
        `None` for an image tower.
      method: the method of such a model, by default; "": the configuration's.
      recognises: a function of a folder or file that says whether it is of this family; only asked of importers that
        other packages register.
      open_weights: a function of a folder or file that opens the `WeightFile` with the layers of all towers; `None`
        where there is no such file.
      has_own_head: a function of a folder that says whether its texts end in a layer to another model's space.
    """

    parts: tuple[str, ...]
    configure: Callable
    load_weights: Callable
    vocabulary: Callable | None
    method: str = ""
    recognises: Callable[[pathlib.Path], bool] = lambda folder: False
    open_weights: Callable[[pathlib.Path], Any] | None = None
    has_own_head: Callable[[pathlib.Path], bool] = lambda folder: False
