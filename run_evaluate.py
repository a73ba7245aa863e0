"""The same as `python -m mural_tf evaluate`; --help describes it."""

from mural_tf.commands import run

if __name__ == "__main__":
    run("evaluate")
