"""Finds the images that a sentence, in any language, describes best.

    python run_search.py --model=WORKDIR_OR_EXPORT --images=FOLDER --query="ein roter Ballon" --output=results.png
    python run_search.py --model=WORKDIR_OR_EXPORT --images=DATA --split=test --query="..."

Prints the ranked files with their cosine; --output draws them on a contact sheet.
"""

from __future__ import annotations

from absl import flags

from mural_tf import cli

MODEL = flags.DEFINE_string("model", None, "Workdir or export.", required=True)
IMAGES = flags.DEFINE_string("images", None, "Folder of images, or of TFRecords together with --split.", required=True)
SPLIT = flags.DEFINE_string("split", "", "Search this split of the TFRecords in --images.")
QUERY = flags.DEFINE_string("query", None, "A sentence in any language.", required=True)
TOP = flags.DEFINE_integer("top", 10, "How many images to show.")
OUTPUT = flags.DEFINE_string("output", "", "PNG file for a contact sheet of the results.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images encoded at a time.", lower_bound=1)


def main(_) -> None:
    from mural_tf.search.exact import search_and_show

    search_and_show(MODEL.value, IMAGES.value, QUERY.value, TOP.value, SPLIT.value, OUTPUT.value, BATCH_SIZE.value)


if __name__ == "__main__":
    cli.run(main)
