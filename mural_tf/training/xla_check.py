"""The former name of the command xla_check."""

if __name__ == "__main__":
    from mural_tf.commands import run_former

    run_former("mural_tf.training.xla_check", "xla_check")
