"""The former name of the command translate."""

if __name__ == "__main__":
    from mural_tf.commands import run_former

    run_former("mural_tf.data.translated_captions", "translate")
