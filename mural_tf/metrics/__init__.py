"""Numbers computed from embeddings and labels; NumPy only."""
