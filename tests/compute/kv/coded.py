"""The numbers that the codes of compute/kv/schemes/codes.py stand for."""

import numpy as np

from omlx_server.compute.kv.schemes import codes


def coded_levels(bits: int) -> np.ndarray:
    """One number f64 for each index, ascending."""
    index = np.arange(2**bits)  # bytes with one index, and zeros behind it
    levels = np.zeros(2**bits)
    for plane in codes.planes(bits):
        code = np.array(plane.table)[index] & 0xFF
        levels += plane.step * (code.astype(np.float64) - plane.zero)
    return levels
