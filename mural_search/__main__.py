"""`python -m mural_search COMMAND …`: the commands are in commands.py."""

from mural_search.commands import run_script

run_script()
