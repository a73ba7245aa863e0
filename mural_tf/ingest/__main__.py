"""Converts published training data to the project's TFRecords (docs/convert.md).

    python -m mural_tf.ingest SOURCE … --output=data/mine [--workers=8] [--filters=etcl] …

A SOURCE is KIND:PATH[,OPTION=VALUE…]; --list prints the kinds and their options. Several sources become one data set.
A conversion that stopped goes on when the same command is run again.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
from collections.abc import Sequence

from absl import flags

from mural_tf import cli
from mural_tf.errors import UserError
from mural_tf.ingest.convert import KINDS
from mural_tf.ingest.source import BLOCK_SIZES, FILTERS, Filters, Settings, parse_source

FLAGS = flags.FLAGS


def main(argv: Sequence[str]) -> None:
    """Converts what the command line names and prints the report."""
    if FLAGS.list:
        print(describe_kinds())
        return
    if len(argv) < 2:
        raise UserError("No source given: expected KIND:PATH[,OPTION=VALUE…]; --list prints the kinds.")
    if not FLAGS.output:
        raise UserError("--output is missing: the folder for the data set, for example --output=data/mine.")
    from mural_tf.ingest.convert import convert

    sources = [parse_source(text, KINDS) for text in argv[1:]]
    output = convert(sources, FLAGS.output, settings_from_flags(), FLAGS.restart)
    print(report(output))


def settings_from_flags() -> Settings:
    """Returns the settings: a preset of filters, changed by the flags that were given."""
    filters = FILTERS[FLAGS.filters]
    given = {f.name: FLAGS[f.name].value for f in dataclasses.fields(Filters) if FLAGS[f.name].present}
    return Settings(
        filters=dataclasses.replace(filters, **given),
        evaluation_images=tuple(FLAGS.evaluation_images),
        hash_distance=FLAGS.hash_distance,
        exclude_texts=tuple(FLAGS.exclude_texts),
        translations=tuple(FLAGS.translations),
        translation_languages=tuple(FLAGS.translation_languages),
        image_size=FLAGS.image_size,
        block_sizes=tuple({**BLOCK_SIZES, "image": FLAGS.images_per_block, "pair": FLAGS.pairs_per_block}.items()),
        shard_megabytes=FLAGS.shard_megabytes,
        workers=FLAGS.workers,
        max_skipped_fraction=FLAGS.max_skipped_fraction,
    )


def report(output: pathlib.Path) -> str:
    """Returns what `dataset.json` says of the records and of what was not converted."""
    description = json.loads((output / "dataset.json").read_text(encoding="utf-8"))
    lines = []
    for split, counts in description["counts"]["image_text"].items():
        lines.append(f"{split}: {counts['images']} images, {counts['captions']} captions")
    for split, count in description["counts"]["text_pairs"].items():
        lines.append(f"{split}: {count} text pairs")
    for what, word in (("skipped", "skipped"), ("left_out", "left out")):
        for kind, entry in sorted(description[what].items(), key=lambda item: -item[1]["count"]):
            lines.append(f"{word} {entry['count']} x {kind}, first at {entry['first']}")
    if (output / "skipped.tsv").exists():
        lines.append(f"All that was skipped: {output / 'skipped.tsv'}")
    lines.append(f"{len(description['languages'])} languages or language pairs in {output}")
    return "\n".join(lines)


def describe_kinds() -> str:
    """Returns every kind of source with its options."""
    parts = []
    for kind, cls in KINDS.items():
        options = [f"{f.name}={_shown(f.default)}" for f in dataclasses.fields(cls) if f.name != "path" and f.init]
        parts.append(f"{kind}:PATH  {', '.join(options)}\n    " + inspect.getdoc(cls).replace("\n", "\n    "))
    return "\n\n".join(parts)


def _shown(default) -> str:
    return "+".join(default) if isinstance(default, tuple) else str(default)


def _define_flags() -> None:
    flags.DEFINE_bool("list", False, "Print the kinds of sources and their options.")
    flags.DEFINE_string("output", "", "Folder for the data set; it appears when the conversion is complete.")
    flags.DEFINE_integer("workers", 2, "Processes that convert; 0 converts in this one.")
    flags.DEFINE_bool("restart", False, "Begin anew instead of going on with an unfinished conversion.")
    flags.DEFINE_float("max_skipped_fraction", 0.01, "Stop when a larger share of captions and pairs is unusable.")
    flags.DEFINE_enum("filters", "none", list(FILTERS), "A set of filters; the flags below change single ones.")
    for field in dataclasses.fields(Filters):
        define = flags.DEFINE_float if field.type == "float" else flags.DEFINE_integer
        define(field.name, field.default, "Filter, see --filters and docs/convert.md; 0 is none.")
    flags.DEFINE_multi_string("evaluation_images", [], "File, folder, pattern: leave out images that look like these.")
    flags.DEFINE_integer("hash_distance", 4, "Bits of 64 by which perceptual hashes of one picture may differ.")
    flags.DEFINE_multi_string("exclude_texts", [], "Text file, pattern: leave out pairs that hold one of its lines.")
    flags.DEFINE_multi_string("translations", [], "Translations of English captions, added to these as captions.")
    flags.DEFINE_list("translation_languages", [], "Languages to take from --translations; empty: all.")
    flags.DEFINE_integer("image_size", 0, "Shrink images whose shorter side is longer than this; 0 copies them.")
    flags.DEFINE_integer("images_per_block", BLOCK_SIZES["image"], "How many images a worker converts at a time.", 1)
    flags.DEFINE_integer("pairs_per_block", BLOCK_SIZES["pair"], "How many text pairs a worker converts at a time.", 1)
    flags.DEFINE_integer("shard_megabytes", 64, "Least size of a TFRecord file.", 0)


if __name__ == "__main__":
    _define_flags()
    cli.run(main, positional=True)
