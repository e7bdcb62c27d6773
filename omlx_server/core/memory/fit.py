"""Tells whether a model has room within the memory limit, before it is downloaded. Pure."""

from enum import Enum

WEIGHTS_SHARE = 0.85
"""The share of the limit for weights; the rest is for conversations."""
CONTEXT = 32_768
"""The tokens of a long conversation, or of a coding agent's."""
_SHORT_CONTEXT = 4_096
# A share of the limit for a step's intermediate values and for freed buffers.
_STEP_SHARE = 0.05
# Keys and values of a token in half precision: those of models with 4 to 14 billion parameters,
# and more with more weights.
_USUAL_TOKEN_BYTES = 131_072
_WEIGHTS_OF_A_TOKEN_BYTE = 200_000


class Fit(Enum):
    """`TIGHT`: there is room for short conversations only."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "too large"


def fit_of(weights: int, token_bytes: int | None, limit: int, context: int = CONTEXT) -> Fit:
    """Compare weights and one conversation with a limit, in bytes; those of a token may be None."""
    if weights > WEIGHTS_SHARE * limit:
        return Fit.TOO_LARGE
    if token_bytes is None:
        token_bytes = _USUAL_TOKEN_BYTES + weights // _WEIGHTS_OF_A_TOKEN_BYTE
    room = (1 - _STEP_SHARE) * limit - weights
    if room >= token_bytes * min(context, CONTEXT):
        return Fit.FITS
    return Fit.TIGHT if room >= token_bytes * min(context, _SHORT_CONTEXT) else Fit.TOO_LARGE
