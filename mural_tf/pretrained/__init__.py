"""Weights that exist already, from files the user has: ALIGN, BERT and LaBSE, Keras' EfficientNet.

    python -m mural_tf import align --weights=align-base --workdir=workdirs/align_base

writes a workdir that everything else takes. In Python, `importers.import_weights` gives the model. One file for each
source, each with a flat table of names. No pickle is ever opened.
"""
