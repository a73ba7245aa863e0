"""An image and one of its captions: "image", "image_id", "caption" (tokens), "caption_id"."""

from mural_tf.data.streams.stream import Stream


class ImageText(Stream):
    """`Stream` itself, under the name of its records."""
