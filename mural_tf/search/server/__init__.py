"""A small REST server for an export, with TensorFlow Serving's paths and JSON: `python -m mural_tf serve --export=…`.

For trying an export without the `tensorflow_model_server` binary, and for mounting other routes beside
the encoders (`create_app(export, extra_routes=…)`). Left out of TensorFlow Serving's API: gRPC, `:classify` and
`:regress`, and policies other than "the newest version, and those with labels".
"""
