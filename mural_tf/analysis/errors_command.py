"""The flags of `python -m mural_tf.analysis errors`; see `errors.py`."""

from __future__ import annotations

from absl import flags

from mural_tf.analysis import errors
from mural_tf.errors import UserError

MODEL = flags.DEFINE_string("model", None, "Workdir or export.", required=True)
OTHER = flags.DEFINE_string("other", "", "Second workdir or export, shown beside the first.")
DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of image-text TFRecords.", required=True)
SPLIT = flags.DEFINE_string("split", "test", "Split of the TFRecords.")
LANGUAGES = flags.DEFINE_list("languages", [], "Languages, for example en,sw. Default: all.")
QUERIES = flags.DEFINE_integer("queries", 20, "Queries for each language and direction.", lower_bound=1)
SHOW = flags.DEFINE_enum("show", "wrong", ["wrong", "worse", "all"], "Which queries.")
OUTPUT = flags.DEFINE_string("output", None, "HTML file.", required=True)
SEED = flags.DEFINE_integer("seed", 0, "Of the choice with --show=all.")


def main(_) -> None:
    from mural_tf.loading import load

    if SHOW.value == "worse" and not OTHER.value:
        raise UserError("--show=worse compares two models: name the second with --other.")
    paths = [MODEL.value, *([OTHER.value] if OTHER.value else [])]
    models = {path: load(path) for path in paths}
    errors.write_error_page(
        models, DATA_DIR.value, SPLIT.value, LANGUAGES.value, OUTPUT.value, QUERIES.value, SHOW.value, SEED.value
    )
