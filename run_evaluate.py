"""Evaluates a model on a benchmark: prints a table and keeps the numbers.

    python run_evaluate.py --model=WORKDIR_OR_EXPORT --data_dir=DATA --split=test

The numbers go into the model's workdir (metrics.jsonl, evaluation/) or into --output. The data is a folder of the
project's image-text TFRecords, the emoji benchmark's among them.
"""

from __future__ import annotations

from absl import flags

from mural_tf import cli

MODEL = flags.DEFINE_string("model", None, "Workdir or export to evaluate.", required=True)
DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of image-text TFRecords.", required=True)
SPLIT = flags.DEFINE_string("split", "test", "Split; make choices on dev and report test.")
LANGUAGES = flags.DEFINE_list("languages", [], "Evaluate these languages only, for example en,de. Default: all.")
BENCHMARK = flags.DEFINE_enum("benchmark", "retrieval", ["retrieval", "emoji"], "Protocol; names the metrics.")
OUTPUT = flags.DEFINE_string("output", "", "Folder for the numbers. Default: the model's workdir.")
CHECKPOINT = flags.DEFINE_enum("checkpoint", "latest", ["latest", "best"], "Which of the workdir's.")
BATCH_SIZE = flags.DEFINE_integer("batch_size", 128, "Images, or texts, encoded at a time.", lower_bound=1)


def main(_) -> None:
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
    )


if __name__ == "__main__":
    cli.run(main)
