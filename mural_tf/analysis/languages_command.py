"""The flags of `python -m mural_tf.analysis languages`; see `languages.py`."""

from __future__ import annotations

from absl import flags

from mural_tf.analysis import languages

MODEL = flags.DEFINE_string("model", None, "Workdir or export.", required=True)
DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of aligned files, or of TFRecords.", required=True)
SPLIT = flags.DEFINE_string("split", "test", "Split of the TFRecords.")
LANGUAGES = flags.DEFINE_list(
    "languages", [], "These languages only. Default: all with --least_share of the sentences."
)
LEAST_SHARE = flags.DEFINE_float("least_share", 0.5, "Share of the sentences that a language must have.")
OUTPUT = flags.DEFINE_string("output", None, "Folder for the map.", required=True)
HEAD = flags.DEFINE_string("head", "", "Head of the text tower, text_text for example. Default: image_text.")
VARIANCE = flags.DEFINE_float("variance", 0.99, "Share of variance that SVCCA keeps.")
NEIGHBOURS = flags.DEFINE_integer("neighbours", 0, "Edges of each language in the map's graph; 0: all.", lower_bound=0)


def main(_) -> None:
    from mural_tf.loading import load

    embedder = load(MODEL.value)
    if HEAD.value:
        embedder = embedder.with_text_head(HEAD.value)
    languages.map_languages(
        embedder,
        DATA_DIR.value,
        SPLIT.value,
        LANGUAGES.value,
        OUTPUT.value,
        VARIANCE.value,
        NEIGHBOURS.value,
        LEAST_SHARE.value,
    )
