"""A search page of own pictures: own tables and folders, one SQLite file, one ranking, the page and its server.

It imports `mural_lite` only, so that it runs without TensorFlow; see README.md in this folder.
"""

import pathlib

TEMPLATES = pathlib.Path(__file__).with_name("templates")
