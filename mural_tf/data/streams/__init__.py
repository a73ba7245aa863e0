"""Streams of training items: their order, their position, and a file for each kind of item."""
