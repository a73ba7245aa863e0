"""The former name of the command convert."""

if __name__ == "__main__":
    from mural_tf.commands import run_former

    run_former("mural_tf.data.convert", "convert")
