"""The former name of the command emoji."""

from mural_tf.commands import run_former

run_former("mural_tf.data.emoji", "emoji")
