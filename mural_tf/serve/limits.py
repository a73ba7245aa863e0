"""What one request may cost, and how long it may wait for company."""

from __future__ import annotations

import dataclasses

from mural_tf.config import ConfigurationError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Settings of the server; raises `ConfigurationError` if one makes no sense."""

    max_batch: int = 64  # rows in one run of a model
    window: float = 0.002  # seconds that a request waits for others to share a run
    max_request_bytes: int = 32 * 2**20  # of a body, unpacked; more is answered with 413
    max_rows: int = 1024  # of one request; more is answered with 400
    max_waiting: int = 1024  # requests waiting for one signature; more are answered with 503
    body_timeout: float = 60.0  # seconds that a client may take to send a body; more is answered with 408
    shutdown_timeout: float = 20.0  # seconds that running requests get at the end

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name != "window"):
                raise ConfigurationError(f"The server's {field.name}={value} must be above 0.")
