"""The numbers that the codes of compute/kv/schemes/codes.py stand for."""

import numpy as np

from omlx_server.compute.kv.schemes import codes


def coded_levels(bits: int) -> np.ndarray:
    """One number f64 for each index, ascending."""
    index = np.arange(2**bits)  # bytes with one index, and zeros behind it
    coding = codes.coding(bits)
    levels = np.zeros(2**bits)
    for place in range(coding.each):
        code = np.array(coding.table)[index] >> 8 * place & 0xFF
        levels = 256 * levels + coding.step * (code.astype(np.float64) - coding.zero)
    return levels
