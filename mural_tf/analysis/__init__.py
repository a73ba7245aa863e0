"""What a model has learned: which languages it sees as similar, and what it gets wrong. Arrays in, files out."""
