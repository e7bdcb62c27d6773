"""The memory of this process: how much it takes, and how freed memory is given back. Any thread."""

import ctypes
import gc

import psutil

_LIBC = ctypes.CDLL(None)
_PROCESS = psutil.Process()


def resident_bytes() -> int:
    """Bytes of RAM that the process takes for any purpose. A GPU's own memory is not counted."""
    return int(_PROCESS.memory_info().rss)


def return_freed() -> None:
    """Give freed memory back to the operating system. glibc would keep it, in heaps of several
    threads: after a model of 600 MB was freed, nothing came back. Takes 0.3 s per GB, without the
    GIL. Does nothing with a C library other than glibc."""
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


def collect_cycles() -> None:
    """Free objects that only refer to each other, frozen ones too. Holds the GIL for 0.1 to 0.15 s,
    because all objects of the libraries and the models are looked through."""
    gc.unfreeze()
    gc.collect()


def freeze() -> None:
    """Leave all objects that exist now out of the collections that Python starts by itself, until
    `collect_cycles` is called. Python starts one whenever requests have made many objects, and with
    these it would take as long as `collect_cycles`."""
    gc.freeze()
