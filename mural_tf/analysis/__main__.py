"""The former name of the command analyse."""

from mural_tf.commands import run_former

run_former("mural_tf.analysis", "analyse")
