"""Exports a trained model for TensorFlow Serving and TF-Hub. Example:

python run_export.py --model=workdirs/emoji_mural --output=exports/emoji_mural
"""

import pathlib

from absl import flags

from mural_tf import cli

MODEL = flags.DEFINE_string("model", None, "Workdir to export a checkpoint of.", required=True)
OUTPUT = flags.DEFINE_string("output", "", "Folder for the export. Default: export/ in the workdir.")
CHECKPOINT = flags.DEFINE_enum("checkpoint", "latest", ["latest", "best"], "Which of the workdir's.")
PRECISION = flags.DEFINE_enum(
    "precision", "float32", ["float32", "mixed_bfloat16"], "What the exported encoders compute in."
)
VARIANTS = flags.DEFINE_list(
    "variants", [], "Also write TensorFlow Lite encoders with weights in float16, int8, and measure what they lose."
)
LANGUAGES = flags.DEFINE_list("languages", [], "Languages to measure the variants in. Default: all of the data's.")
OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace an export that is already there.")


def main(argv):
    del argv
    from mural_tf.export.saved_model import export_workdir

    path = export_workdir(MODEL.value, OUTPUT.value, OVERWRITE.value, CHECKPOINT.value, PRECISION.value)
    print(f"Exported to {path}")
    if VARIANTS.value:
        from mural_tf.runs.variants import describe, export_variants

        report = export_variants(MODEL.value, path, VARIANTS.value, CHECKPOINT.value, LANGUAGES.value or None)
        print(f"{describe(report)}\nWritten to {pathlib.Path(path) / 'tflite'}")


if __name__ == "__main__":
    cli.run(main)
