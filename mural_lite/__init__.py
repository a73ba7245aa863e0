"""Using a trained model without TensorFlow: its encoders, and the files and pictures that they are given.

    import mural_lite

    embedder = mural_lite.open_model("my_export/lite")
    embedder.encode_text(["a red balloon", "ein roter Ballon"])  # float32 [2, D], L2-normalised

It imports neither TensorFlow nor `mural_tf`: a model that needs these is opened by the package that is registered for
it under the entry point `mural.models`. See README.md in this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mural_lite.embedder import Embedder
    from mural_lite.models import open_model

__version__ = "0.1.0"
__all__ = ["Embedder", "open_model"]


def __getattr__(name: str) -> object:
    """Imports `Embedder` and `open_model` at their first use, so that `import mural_lite` is fast."""
    if name == "Embedder":
        from mural_lite.embedder import Embedder

        return Embedder
    if name == "open_model":
        from mural_lite.models import open_model

        return open_model
    raise AttributeError(f"module 'mural_lite' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
