"""Data: from files to batches, in an order that a run can go on with from any step.

record_format.py, records.py, tfrecord.py   what a record holds; files of records
pictures.py, images.py                      pictures by Pillow, where they enter; JPEG and PNG in the graph
streams/        a pipeline's order and place (epochs.py), and a file for each kind of item: captions, text pairs, …
datasets/       data sets that any machine can make: emoji, shapes
skipped.py      what cannot be used: counted, named, bounded
vectors.py      vectors of texts on disk; the other files are of conversions
"""

# Images of more are not decoded, neither by Pillow nor in the graph: a few kilobytes can hold gigabytes of one colour.
MAX_PIXELS = 2**26
