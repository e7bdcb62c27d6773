"""Memory of ranks. Mlx thread, at load."""

from omlx_server.compute.cluster.ranks import Ranks
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.filled import one_token


def room_of_all(loaded: LoadedModel, ranks: Ranks, room: int) -> int:
    """Return how many of its `room` bytes beside the weights this rank may use, so that no other
    rank, whose layers may keep more of a token, runs out first. All ranks call this at the same
    time. Runs the model on one token."""
    own: int = max(1, sum(leaf.nbytes for leaf in leaves(one_token(loaded.model))))
    most = ranks.most(own)
    return max(0, ranks.least(room)) * own // most
