"""OpenBLAS in place of the reference BLAS that the Linux wheel of mlx carries (30x in float32).

The dynamic linker takes the first definition of `cblas_sgemm` that it finds, so a library loaded
globally before mlx wins. macOS has Accelerate and needs nothing.

OpenBLAS knows processors by their model numbers. One that is newer than the library gets kernels
for the oldest of all (a fifth of the speed), so its instructions decide here.
"""

import ctypes
import os
import sys
from collections.abc import Set
from pathlib import Path

_LIBRARIES = ("libopenblas.so.0", "libopenblas.so")
_CPU_INFO = Path("/proc/cpuinfo")
# Kernels of OpenBLAS by the instructions that they need, the fastest first.
_KERNELS = {
    "SkylakeX": frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}),
    "Haswell": frozenset({"avx2", "fma"}),
}


def preload() -> str | None:
    """Load OpenBLAS if it is there. Returns its name, "Accelerate" on macOS, or None."""
    if sys.platform == "darwin":
        return "Accelerate"
    # More threads were no faster for the shapes of a transformer, and they starve the host thread.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    kernels = kernels_for(instructions())
    if kernels is not None:
        os.environ.setdefault("OPENBLAS_CORETYPE", kernels)
    for library in _LIBRARIES:
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return library
    return None


def kernels_for(instructions: Set[str]) -> str | None:
    """OpenBLAS's name of the fastest kernels for an x86 processor. None where the library is to
    choose: it is no x86 one, or an old one."""
    return next((name for name, needed in _KERNELS.items() if needed <= instructions), None)


def instructions() -> frozenset[str]:
    """The flags of the first processor in /proc/cpuinfo: none where there is no such line."""
    if not _CPU_INFO.exists():
        return frozenset()
    for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
