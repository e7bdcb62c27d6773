"""A handler for SIGTERM for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm(act: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let SIGTERM call `act` within the `with`."""
    before = signal.signal(signal.SIGTERM, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
