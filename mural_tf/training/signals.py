"""SIGTERM and Ctrl-C end a run in order: after the running training step, or at once where nothing would be lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


class StopRequested(BaseException):
    """Unwinds what can simply be done again: data preparation, evaluation, export.

    Like `KeyboardInterrupt` no `Exception`, so that nothing on the way takes it for a failure of its own.
    """


class StopSignals:
    """While entered, a first signal raises `StopRequested`; within `after_the_step()` it only sets `received`.

    A second signal always raises: who asks twice does not want to wait for the step. Handlers exist in the main thread
    only; elsewhere entering does nothing.
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._waits = False
        self._previous: dict = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def after_the_step(self, waits: bool = True) -> Iterator[None]:
        """Inside, signals wait for whoever looks at `received`; with `waits` False, nested, they do not."""
        before, self._waits = self._waits, waits
        try:
            yield
        finally:
            self._waits = before

    def check(self) -> None:
        """Raises `StopRequested` if a signal came."""
        if self.received:
            raise StopRequested

    def _stop(self, number, frame) -> None:
        first, self.received = self.received is None, signal.Signals(number)
        if not first or not self._waits:
            raise StopRequested
        print(f"\n{self.received.name}: stopping after this step …", file=sys.stderr, flush=True)
