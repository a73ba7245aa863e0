"""The analyses of the paper.

    python -m mural_tf.analysis languages --model=WORKDIR --data_dir=DATA --output=FOLDER
    python -m mural_tf.analysis errors --model=WORKDIR --data_dir=DATA --languages=sw --output=errors.html

`languages` draws a map of languages that the text tower sees alike; `errors` makes a page of queries and what was
found for them. Each takes --help.
"""

from __future__ import annotations

import sys

from mural_tf import cli

COMMANDS = ("languages", "errors")


def run() -> None:
    """Takes the command off the command line, so that only its flags exist, and runs it."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command not in COMMANDS:
        print(__doc__.strip(), file=sys.stdout if command in ("--help", "-h") else sys.stderr)
        sys.exit(0 if command in ("--help", "-h") else 2)
    del sys.argv[1]
    if command == "languages":
        from mural_tf.analysis.languages_command import main
    else:
        from mural_tf.analysis.errors_command import main
    cli.run(main)


if __name__ == "__main__":
    run()
