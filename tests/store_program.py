"""What a user does with a trained model, all of it in a store: python store_program.py EXPORT_FOLDER."""

import sys

import numpy as np
from toy_data import toy_tokenizer
from toy_export import toy_model

from mural_lite import remote_folders
from mural_lite.config_file import load_config
from mural_lite.errors import UserError
from mural_lite.models import open_model
from mural_search import runs as commands
from mural_search.queries import Query
from mural_tf.analysis.errors import write_error_page
from mural_tf.analysis.languages import map_languages
from mural_tf.demo.shapes import build_shapes
from mural_tf.evaluation.report import evaluate_and_report
from mural_tf.export.saved_model import export_model
from mural_tf.ingest.features import cache_features

STORE = "s3://bucket"


def main(export):
    """Stops at the first thing that is not as it should be."""
    remote_folders.EVERY = 0.5
    data, model, index = f"{STORE}/data", f"{STORE}/models/export", f"{STORE}/indexes/of shapes"
    build_shapes(data, images=12)
    assert build_shapes(data, images=12)  # it is there already
    config = load_config(f"{export}/config.json")
    export_model(toy_model(config), toy_tokenizer(lower_case=True), config, model)
    refused("holds an export already", export_model, toy_model(config), toy_tokenizer(True), config, model)
    ours, theirs = open_model(export), open_model(model)
    assert np.array_equal(ours.encode_text(["a b"]), theirs.encode_text(["a b"])) and theirs.path == model
    assert open_model(f"{model}/hub").encode_text(["a b"]).shape == (1, ours.embedding_size)
    evaluate_and_report(model, data, "test", output=f"{STORE}/results")
    evaluate_and_report(model, data, "dev", output=f"{STORE}/results")
    commands.index([data], index, model=model, split="test")
    commands.index([data], index, model=model, split="test")
    found = commands.query(index, [Query("a red circle")], html=f"{STORE}/pages/a.html", json=f"{STORE}/pages/a.json")
    assert found[0].hits and found[0].hits[0].name
    write_error_page({model: theirs}, data, "test", [], f"{STORE}/pages/errors.html")
    map_languages(theirs, data, "test", [], f"{STORE}/maps")
    cache_features(data, f"{STORE}/features", f"{model}/hub/image_encoder", resize=40, image_size=32)
    refused("does not exist, is empty, or may not be read", open_model, f"{STORE}/nothing")
    remote_folders.remove_copies()
    print("All of it works.", flush=True)


def refused(words, function, *arguments):
    """Checks that a call ends in a line with these words."""
    try:
        function(*arguments)
    except UserError as error:
        assert words in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError(words)


if __name__ == "__main__":
    import os

    try:
        main(*sys.argv[1:])
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the client of s3:// aborts the process while it is taken down
