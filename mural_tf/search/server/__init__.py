"""A small REST server for an export, with TensorFlow Serving's paths and JSON: `python -m mural_tf serve --export=…`.

For one export on one machine, and for mounting other routes next to the encoders (`create_app(export,
extra_routes=…)`). TensorFlow Serving does the rest: gRPC, `:classify` and `:regress`, several versions at once, labels.
"""
