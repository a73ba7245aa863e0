"""Evaluates a model on a benchmark: prints a table and keeps the numbers.

    python run_evaluate.py --model=WORKDIR_OR_EXPORT --data_dir=DATA --split=test
    python run_evaluate.py --model=WORKDIR_OR_EXPORT --data_dir=DOWNLOADS --benchmark=multi30k --languages=en,de
    python run_evaluate.py --model=WORKDIR_OR_EXPORT --data_dir=DOWNLOADS --benchmark=all
    python run_evaluate.py --list

The numbers go into the model's workdir (metrics.jsonl, evaluation/) or into --output. --data_dir is the folder of the
benchmark's files or of folders named after benchmarks; --list names the benchmarks, the files they need and where to
get them. Choices of a protocol are --protocol.NAME=VALUE: see mural_tf/evaluation/protocol.py and docs/evaluation.md.
"""

from __future__ import annotations

import sys

from absl import flags
from ml_collections import config_flags

from mural_tf import cli
from mural_tf.errors import UserError
from mural_tf.evaluation.protocol import default_protocol

MODEL = flags.DEFINE_string("model", None, "Workdir or export to evaluate.")
DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of the benchmark's files, or of TFRecords.")
SPLIT = flags.DEFINE_string("split", "", "Split; make choices on dev and report test. Default: the benchmark's test.")
LANGUAGES = flags.DEFINE_list("languages", [], "Evaluate these languages only, for example en,de. Default: all.")
BENCHMARK = flags.DEFINE_string("benchmark", "retrieval", "Name of a benchmark, see --list, or all.")
OUTPUT = flags.DEFINE_string("output", "", "Folder for the numbers. Default: the model's workdir.")
CHECKPOINT = flags.DEFINE_enum("checkpoint", "latest", ["latest", "best"], "Which of the workdir's.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, "Images, or texts, encoded at a time.", lower_bound=1)
COMPARE = flags.DEFINE_bool("compare", False, "Print the papers' numbers beside ours, with the differences.")
LIST = flags.DEFINE_bool("list", False, "List the benchmarks and end.")
try:
    PROTOCOL = config_flags.DEFINE_config_dict("protocol", default_protocol(), "Choices of the protocol.")
except (AttributeError, KeyError, TypeError) as error:  # ml_collections looks at the command line already here
    reason = str(error).strip("'\"").replace("\\n", " ").replace("\\'", "'")
    sys.exit(f"Error: Unknown option or wrong type in the --protocol flags: {reason}")


def main(_) -> None:
    if LIST.value:
        from mural_tf.evaluation.catalogue import describe_catalogue

        print(describe_catalogue())
        return
    if not MODEL.value or not DATA_DIR.value:
        raise UserError("Give --model=WORKDIR_OR_EXPORT and --data_dir=FOLDER, or --list for the benchmarks.")
    from mural_tf.evaluation.report import evaluate_and_report

    evaluate_and_report(
        MODEL.value,
        DATA_DIR.value,
        SPLIT.value,
        LANGUAGES.value,
        BENCHMARK.value,
        OUTPUT.value,
        BATCH_SIZE.value,
        CHECKPOINT.value,
        PROTOCOL.value,
        COMPARE.value,
    )


if __name__ == "__main__":
    cli.run(main)
