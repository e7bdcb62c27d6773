"""The numbers that the codes of compute/kv/schemes/codes.py stand for."""

import numpy as np

from omlx_server.compute.kv.schemes import codebook, codes


def coded_levels(bits: int) -> np.ndarray:
    """One number f64 for each index, ascending."""
    index = np.arange(2**bits)  # bytes with one index, and zeros behind it
    coding = codes.coding(bits)
    levels = np.zeros(2**bits)
    for place in range(coding.codes_per_index):
        code = np.array(coding.table)[index] >> 8 * place & 0xFF
        levels = 256 * levels + coding.step * (code.astype(np.float64) - coding.zero)
    return levels


def distortion(bits: int) -> float:
    """The codebook's: E[(x - c)^2] = 1 - E[c^2], where each level c is the mean of its cell."""
    return float(1 - (codebook.levels(bits) ** 2 * codebook.masses(bits)).sum())
