"""Word-piece vocabulary and the in-graph tokenizer that data, evaluation and export share."""
