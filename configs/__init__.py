"""The configurations: `--config=NAME` is the file of this name here; docs/training.md says what they are for."""
