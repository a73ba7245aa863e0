"""Recipes: what one command does from beginning to end. The last room: it may import from every other."""
