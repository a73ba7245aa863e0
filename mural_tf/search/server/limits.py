"""What the server gives at most: to one request, and to all that are in flight together."""

from __future__ import annotations

import dataclasses

from mural_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Limits:
    """Settings of the server; raises `UserError` if one makes no sense."""

    max_batch: int = 64  # rows in one run of a model
    window: float = 0.002  # seconds that a request waits for others to share a run
    max_request_bytes: int = 32 * 2**20  # of a body, unpacked; more is answered with 413
    max_bytes_in_flight: int = 96 * 2**20  # of all bodies and answers that are held; more is answered with 503
    max_parsed_bytes: int = 96 * 2**20  # of a body as Python's objects, estimated; more is answered with 413
    max_rows: int = 1024  # of one request; more is answered with 400
    max_image_pixels: int = 64 * 10**6  # of one image, by its header; more is answered with 400
    max_request_pixels: int = 128 * 10**6  # of one request; twice as many are in flight, beyond that 503
    max_waiting: int = 1024  # requests waiting for one signature; more are answered with 503
    max_connections: int = 512  # open at once; more are answered with 503 and closed
    idle_timeout: float = 75.0  # seconds that a connection is kept without a request
    body_timeout: float = 60.0  # seconds that a client may take to send a body (408), or to take an answer
    request_timeout: float = 60.0  # seconds from the body to the answer; more is answered with 503
    shutdown_timeout: float = 20.0  # seconds that running requests get at the end

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value >= 0 or (value == 0 and field.name != "window"):
                raise UserError(f"The server's {field.name}={value} must be above 0.")
        if self.max_bytes_in_flight < 2 * self.max_request_bytes:
            raise UserError(
                f"The server's max_bytes_in_flight={self.max_bytes_in_flight} must be at least twice "
                f"max_request_bytes={self.max_request_bytes}: otherwise the largest request is never taken."
            )
        if self.max_request_pixels < self.max_image_pixels:
            raise UserError(
                f"The server's max_request_pixels={self.max_request_pixels} must not be below "
                f"max_image_pixels={self.max_image_pixels}."
            )


class Overloaded(Exception):
    """The server has no room for a request now."""


class Budget:
    """An amount that all requests in flight share; used in the event loop only.

    A request that takes n must leave n to the others. So the large ones are refused first, and a few of them cannot
    shut out the small ones.

    Args:
      limit: the amount; a single request gets half of it at most.
      what: its name in the plural, for the error.
    """

    def __init__(self, limit: int, what: str):
        self._limit, self._what, self.used = limit, what, 0

    def check(self, amount: int) -> None:
        """Raises `Overloaded` if a request could not take `amount` now."""
        if self.used + 2 * amount > self._limit:
            raise Overloaded(f"Requests in flight hold {self.used} {self._what} already; try again later.")

    def share(self) -> Share:
        """Returns what one request holds, nothing yet; a context that gives it back."""
        return Share(self)


class Share:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget):
        self._budget, self._amount = budget, 0

    def grow(self, amount: int) -> None:
        """Takes more; raises `Overloaded` if there is no room."""
        self._budget.used -= self._amount
        try:
            self._budget.check(self._amount + amount)
            self._amount += amount
        finally:
            self._budget.used += self._amount

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_) -> None:
        self._budget.used -= self._amount
        self._amount = 0
