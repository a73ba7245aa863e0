"""MURAL-base on LaBSE, or another text encoder of TF-Hub with its interface, in place of a new text tower.

    --config=configs/mural_labse.py:handle=https://tfhub.dev/google/LaBSE/2,preprocessor=PREPROCESSOR

A handle is a TF-Hub address or a local folder. Vocabulary and casing are the module's: out of its own assets or,
without assets, of the module that prepares its texts, for LaBSE
https://tfhub.dev/google/universal-sentence-encoder-cmlm/multilingual-preprocess/2. Texts have 64 tokens, as MURAL's.
`text=frozen` trains the heads and the image tower alone.
"""

from mural_lite.config import base_config
from mural_tf.configs import parse


def get_config(arguments: str = ""):
    """Returns the configuration for arguments such as "handle=HANDLE,preprocessor=HANDLE,text=frozen"."""
    _, values = parse(arguments, {"labse": {"handle": str, "preprocessor": str, "text": ("trained", "frozen")}})
    config = base_config()
    config.text_tower.name = "hub"
    config.text_tower.handle = values.get("handle", "")
    config.text_tower.frozen = values.get("text") == "frozen"
    config.vocabulary.file = values.get("preprocessor", "")
    return config
