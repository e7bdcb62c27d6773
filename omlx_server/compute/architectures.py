"""What single architectures of mlx-lm need beyond what their cache classes tell.

The only table of their names. `scripts/campaign architectures` compares every architecture with
mlx-lm alone; what it finds wrong belongs here, with the reason.
"""

from collections.abc import Mapping

import mlx.nn as nn

# Why a batch can't be right: rows of a batch are padded on the left, so that a token's place in the
# batch is not its place in its own sequence.
SERVED_ALONE: Mapping[str, str] = {
    "afm7": "its layers without keys of their own take positions from the batch",
    "minimax_m3_vl": "its sparse attention divides the places of the batch into blocks",
}
# A prefill of theirs looks one token further back than a decode (`inclusive_ring`).
INCLUSIVE_WINDOWS = frozenset({"plamo3"})


def architecture_of(model: nn.Module) -> str:
    """The name of the module of mlx-lm that the model's class stands in."""
    return type(model).__module__.rpartition(".")[2]
