"""OpenBLAS in place of the reference BLAS that the Linux wheel of mlx carries (30x in float32).

The dynamic linker takes the first definition of `cblas_sgemm` that it finds, so a library loaded
globally before mlx wins. macOS has Accelerate and needs nothing.
"""

import ctypes
import os
import sys

_LIBRARIES = ("libopenblas.so.0", "libopenblas.so")


def preload() -> str | None:
    """Load OpenBLAS if it is there. Returns its name, "Accelerate" on macOS, or None."""
    if sys.platform == "darwin":
        return "Accelerate"
    # More threads were no faster for the shapes of a transformer, and they starve the host thread.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for library in _LIBRARIES:
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return library
    return None
