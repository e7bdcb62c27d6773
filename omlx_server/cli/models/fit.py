"""Tells whether models fit into the memory that a server would use on this machine."""

from rich.filesize import decimal

from omlx_server.core.experts.budget import budget_of
from omlx_server.core.memory.fit import CONTEXT, Fit, fit_of
from omlx_server.models.description import described
from omlx_server.models.layout import expert_sizes, weight_bytes
from omlx_server.models.locate import Located

LONG = f"{CONTEXT // 1024}k tokens of context"


def fit_here(model: Located, limit: int) -> Fit:
    """Tell by a chat model's files whether it fits, perhaps with experts that stay on the disk."""
    about, weights = described(model.path), weight_bytes(model.path)
    if budget := budget_of(weights, expert_sizes(model.path), limit):
        weights = budget.nbytes
    return fit_of(weights, about.token_bytes if about else None, limit)


def fit_in_words(fit: Fit, limit: int) -> str:
    memory = f"{decimal(limit)} of memory"
    if fit is Fit.FITS:
        return f"fits {memory} with {LONG}"
    if fit is Fit.TIGHT:
        return f"tight: {memory} has room for short conversations, not for {LONG}"
    return f"too large for {memory}"
