"""Benchmark protocols: `(embedder, data folder) -> {key: number}`."""
