"""Drawn shapes with captions in six languages: data that needs no download."""
