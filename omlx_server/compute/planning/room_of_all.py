"""How much memory a rank may use, so that no other rank has too little. Mlx thread, at load."""

from omlx_server.compute.cluster.ranks import Ranks
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.filled import one_token


def room_of_all(loaded: LoadedModel, ranks: Ranks, room: int) -> int:
    """How many of its `room` bytes beside the weights this rank may use: when it has used them, no
    other rank has used more than it has, whose layers may keep more of a token. All ranks ask at
    the same time. Runs the model on one token."""
    own: int = max(1, sum(leaf.nbytes for leaf in leaves(one_token(loaded.model))))
    most = ranks.most(own)
    return max(0, ranks.least(room)) * own // most
