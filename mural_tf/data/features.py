"""The former name of the command features."""

if __name__ == "__main__":
    from mural_tf.commands import run_former

    run_former("mural_tf.data.features", "features")
