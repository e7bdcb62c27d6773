"""Tells whether models fit into the memory that a server would use on this machine."""

from rich.filesize import decimal

from omlx_server.core.memory.fit import CONTEXT, Fit, fit_of
from omlx_server.models.description import described
from omlx_server.models.layout import weight_bytes
from omlx_server.models.locate import Located

LONG = f"{CONTEXT // 1024}k tokens of context"


def fit_here(model: Located, limit: int) -> Fit:
    """Tell by a chat model's files whether it fits."""
    about = described(model.path)
    return fit_of(weight_bytes(model.path), about.token_bytes if about else None, limit)


def fit_in_words(fit: Fit, limit: int) -> str:
    memory = f"{decimal(limit)} of memory"
    if fit is Fit.FITS:
        return f"fits {memory} with {LONG}"
    if fit is Fit.TIGHT:
        return f"tight: {memory} has room for short conversations, not for {LONG}"
    return f"too large for {memory}"
