"""Data: from files to batches, in an order that a run can go on with from any step.

records.py      files of records, whose format is mural_lite/record_format.py
images.py       JPEG and PNG in the graph; mural_lite/pictures.py makes them of every other picture
streams/        a pipeline's order and place (epochs.py), and a file for each kind of item: captions, text pairs, …
caption_files.py   captions and pictures of published data sets
"""
