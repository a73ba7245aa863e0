"""MURAL in Keras and TensorFlow: one space for images and sentences in a hundred languages.

    import mural_tf

    embedder = mural_tf.load("a workdir or an export")
    embedder.encode_text(["a red balloon", "ein roter Ballon"])  # float32 [2, D], L2-normalised
    embedder.encode_image(["balloon.jpg"])  # float32 [1, D]

`load` and `Embedder` are imported on first use, so that TensorFlow's notices are kept from the terminal before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mural_lite import __version__

if TYPE_CHECKING:
    from mural_lite.embedder import Embedder
    from mural_lite.models import open_model as load

__all__ = ["Embedder", "__version__", "load"]


def __getattr__(name: str) -> object:
    """Imports `Embedder` or `load` on first use, and returns it; raises `AttributeError` for any other name."""
    if name in __all__:
        from mural_lite.quiet import quiet_imports

        quiet_imports()
    if name == "Embedder":
        from mural_lite.embedder import Embedder

        return Embedder
    if name == "load":
        from mural_lite.models import open_model as load

        return load
    raise AttributeError(f"module 'mural_tf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
