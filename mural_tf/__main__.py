"""`python -m mural_tf COMMAND …`: the commands are in commands.py."""

from mural_tf.commands import run

run()
