"""What SIGTERM does for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm(act: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let SIGTERM call `act`, and at the end what it did before."""
    before = signal.signal(signal.SIGTERM, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
