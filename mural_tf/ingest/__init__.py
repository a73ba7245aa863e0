"""From published training data to the project's TFRecords: `python -m mural_tf convert SOURCE … --output=…`.

A *source* (source.py; the formats are in captioned_sets.py, web_captions.py, wit.py, img2dataset.py, translations.py
and own_records.py) reads items in one process and turns each into records in any process. The *runner* (convert.py)
cuts the items into blocks, which workers convert side by side; a finished block is never done again. In the end the
blocks' parts are joined to shards of the format in docs/data.md. The same sources and settings give the same bytes,
however many workers there are and however often the conversion was stopped.
"""
