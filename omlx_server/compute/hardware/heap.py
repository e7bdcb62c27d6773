"""What the system says of this process's memory, and what it gets back of it. Any thread."""

import ctypes
import gc

import psutil

_LIBC = ctypes.CDLL(None)
_PROCESS = psutil.Process()


def resident_bytes() -> int:
    """The RAM that the process takes, whatever for; not the memory that a GPU has of its own."""
    return int(_PROCESS.memory_info().rss)


def return_freed() -> None:
    """Have the system get what was freed. glibc keeps it for itself, in a heap for each of several
    threads: of a model of 600 MB nothing came back. Takes 0.3 s for each GB, without the GIL.
    Nothing is done where the C library is another one."""
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_cycles() -> None:
    """Free what only refers to itself. Takes 0.1 to 0.15 s, with the GIL: the libraries and the
    models are looked through."""
    gc.unfreeze()
    gc.collect()


def freeze() -> None:
    """Leave all that is here out of the collections that Python starts by itself, until
    `collect_cycles`. They would take as long, each time that requests have made many objects."""
    gc.freeze()
