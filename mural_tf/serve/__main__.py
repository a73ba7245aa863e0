"""The former name of the command serve."""

from mural_tf.commands import run_former

run_former("mural_tf.serve", "serve")
