"""What the server counts, for Prometheus: requests by model and status, seconds, rows a run, and the process itself."""

from __future__ import annotations

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Monitoring:
    """A registry of its own for every app."""

    def __init__(self):
        self._registry = CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self._registry)
        self._requests = Counter("mural_requests", "Requests answered.", ["model", "status"], registry=self._registry)
        self._seconds = Histogram(
            "mural_request_seconds",
            "From the first byte to the answer.",
            ["model"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._rows = Histogram(
            "mural_batch_rows", "Rows in one run.", ["model", "signature"], buckets=ROWS, registry=self._registry
        )

    def request(self, model: str, status: int, seconds: float) -> None:
        """Counts an answer; `model` is "" for a path without one."""
        self._requests.labels(model, str(status)).inc()
        self._seconds.labels(model).observe(seconds)

    def run(self, model: str, signature: str, rows: int) -> None:
        """Counts one run of a model."""
        self._rows.labels(model, signature).observe(rows)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)
