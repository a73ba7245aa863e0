"""What a model has learned: which languages it sees alike, and what it gets wrong. Arrays in, files out."""
