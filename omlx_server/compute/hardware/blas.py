"""Makes MLX use OpenBLAS, which is 30 times as fast in float32 as the reference BLAS in mlx's
wheel for Linux.

The dynamic linker takes the first definition of `cblas_sgemm` that it finds, so a library that is
loaded globally before mlx wins. macOS has Accelerate and needs nothing.

OpenBLAS chooses its kernels by the processor's model number. It runs processors that are newer than
itself with the kernels of the oldest ones, at a fifth of the speed. So the kernels are chosen here,
by the instructions that the processor has.
"""

import ctypes
import os
import sys
from collections.abc import Set
from pathlib import Path

_LIBRARIES = ("libopenblas.so.0", "libopenblas.so")
_CPU_INFO = Path("/proc/cpuinfo")
# OpenBLAS's names of its kernels, and the instructions that each needs; the fastest come first.
_KERNELS = {
    "SkylakeX": frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}),
    "Haswell": frozenset({"avx2", "fma"}),
}


def preload() -> str | None:
    """Load OpenBLAS, if it is installed, and set its environment variables where they are not set.
    To be called before mlx is imported. Returns the library's file name, or None where there is
    none; on macOS does nothing and returns "Accelerate"."""
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
    """OpenBLAS's name of the fastest kernels for a processor with these `instructions`. None for an
    old x86 processor or one of another kind: OpenBLAS chooses for these itself."""
    return next((name for name, needed in _KERNELS.items() if needed <= instructions), None)


def instructions() -> frozenset[str]:
    """The flags of the first processor in /proc/cpuinfo; empty where it lists no flags."""
    if not _CPU_INFO.exists():
        return frozenset()
    for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()
