"""What a process must not have more of once strangers and ranks have gone."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.api.harness import wait_for


def cluster_threads() -> int:
    """Threads of this process that belong to links, gatherings and meetings."""
    return sum(each.name.startswith("cluster-") for each in threading.enumerate())


@contextmanager
def nothing_left() -> Iterator[None]:
    """After the block there must be as many descriptors as before, and as many threads."""
    gc.collect()  # else what earlier tests have left goes meanwhile
    process = psutil.Process()
    before = process.num_fds(), cluster_threads(), threading.active_count()

    def is_as_before() -> bool:
        now = process.num_fds(), cluster_threads(), threading.active_count()
        return all(one <= other for one, other in zip(now, before, strict=True))

    yield
    wait_for(is_as_before)
