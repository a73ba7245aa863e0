"""What a model has learned: which languages it sees as similar, and its mistakes. Arrays in, files out."""
