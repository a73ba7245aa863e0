"""The former name of the command import."""

from mural_tf.commands import run_former

run_former("mural_tf.pretrained", "import")
