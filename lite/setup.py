"""The package mural-tf-lite: `mural_lite` and `mural_search`, which use an export's `lite/` without TensorFlow.

    pip install ./lite

Extras can add to a package's requirements and take nothing away, so this is a package of its own; it and mural-tf hold
these modules: install one of the two.
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
    "pillow>=10.4",  # pictures, and XMP within them
    "defusedxml>=0.7",  # XMP, without entities
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
    "drawings": ["resvg-py>=0.1.5"],  # SVG files as pictures
    "test": [  # tests/lite and tests/search; those of TensorFlow's part are skipped
        "pytest>=7",
        "pytest-xdist>=3.8",
        "hypothesis>=6.100",
        "resvg-py>=0.1.5",
        "lingua-language-detector>=2.0",  # own tables
        "pyarrow>=18",
        "openpyxl>=3.1",
        "s3fs>=2024.2",
        "moto[server]>=5",
        "boto3==1.43.117",  # as in the whole package
        "scipy>=1.9",
        "faiss-cpu>=1.9,<2",
    ],
}

PACKAGES = ("mural_lite", "mural_search")
ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "mural_lite/__init__.py").read_text(encoding="utf-8"))[1]

setup(
    name="mural-tf-lite",
    version=VERSION,
    description="Search pictures in a hundred languages with MURAL's encoders on LiteRT, without TensorFlow",
    license="Apache-2.0",
    package_dir={package: f"../{package}" for package in PACKAGES},
    packages=find_packages("..", include=[f"{package}{below}" for package in PACKAGES for below in ("", ".*")]),
    entry_points={"console_scripts": ["mural=mural_search.commands:run_script"]},
    package_data={"mural_lite": ["py.typed", "templates/*", "README.md"], "mural_search": ["templates/*", "README.md"]},
    python_requires=">=3.10",
    install_requires=REQUIRED,
    extras_require=EXTRAS,
)
