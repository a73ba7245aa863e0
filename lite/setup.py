"""The package mural-tf-lite: mural_tf's modules with what its `lite/` folders need, and without TensorFlow.

    pip install ./lite

Extras can add to a package's requirements and take nothing away, so this is a package of its own; it and mural-tf hold
the same modules: install one of the two.
"""

import pathlib
import re

from setuptools import find_packages, setup

REQUIRED = [
    "ai-edge-litert>=2.1",  # LiteRT, the runtime of TensorFlow Lite; NumPy, protobuf and ml_dtypes come with it
    "sentencepiece>=0.2",  # pieces of SentencePiece and byte pairs; no dependencies, in C++
    "numpy>=1.26",
    "protobuf>=4",  # TFRecords' examples
    "absl-py>=1.4",  # flags
    "ml-collections>=0.1.1",  # configurations
    "langcodes>=3.5",  # language tags
    "pillow>=10",  # pictures
    "jinja2>=3.1",  # pages
    "google-crc32c>=1.5",  # checksums
    "tqdm>=4.65",  # progress bars
    "fsspec>=2024.2",  # files in stores
    "aiohttp>=3.14",  # the server
]
EXTRAS = {
    "hub": ["huggingface_hub>=0.34"],  # hf://ORG/NAME
    "gs": ["gcsfs>=2024.2"],
    "s3": ["s3fs>=2024.2"],
}

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "mural_tf/__init__.py").read_text(encoding="utf-8"))[1]

setup(
    name="mural-tf-lite",
    version=VERSION,
    description="Search pictures in a hundred languages with MURAL's encoders on LiteRT, without TensorFlow",
    license="Apache-2.0",
    package_dir={"mural_tf": "../mural_tf"},
    packages=find_packages("..", include=["mural_tf", "mural_tf.*"]),
    entry_points={"console_scripts": ["mural=mural_tf.commands:run_script"]},
    package_data={"mural_tf": ["py.typed", "templates/*"], "mural_tf.search": ["*.txt"]},
    python_requires=">=3.10",
    install_requires=REQUIRED,
    extras_require=EXTRAS,
)
