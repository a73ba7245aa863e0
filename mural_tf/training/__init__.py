"""Training: the strategy, checkpoints, logs, and the pretraining and fine-tuning calls."""
