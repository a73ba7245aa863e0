"""Finding images by a sentence: indexes and pages of results."""
