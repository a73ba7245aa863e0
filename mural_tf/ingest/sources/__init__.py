"""Readers of published formats: a file a family."""
