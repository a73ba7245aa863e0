"""A trained model's `lite/` folder: both encoders as LiteRT files, read by NumPy and Pillow without TensorFlow.

    lite.json             format, step, embedding size; each file's bytes; how texts become ids
    config.json           the model's configuration, as in a workdir
    image_encoder.tflite  image float32 [1, S, S, 3] RGB in [0, 1] or features [1, F] → embedding float32 [1, D]
    text_encoder.tflite   input_word_ids, input_mask, input_type_ids int32 [1, T] → embedding, and one per further head
    pieces.model          SentencePiece's model; or vocabulary.txt, one entry per line
    model_probes.npy      the trained model's own fingerprint
    report.json           sizes, milliseconds, cosines, and the recall lost in every language

`run_export.py … --lite` writes it (`runs/lite.py`); `mural_tf.load(".../lite")` reads it.
"""
