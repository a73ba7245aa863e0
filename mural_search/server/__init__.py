"""The search page and its server, `python -m mural_tf serve --index=…`; TensorFlow Serving serves the encoders."""
