"""Loads one rank's part of a model, within the memory that every rank has. Mlx thread."""

from functools import partial
from pathlib import Path

from omlx_server.compute.cluster.part import opening_part
from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.fingerprint import together_fingerprint
from omlx_server.compute.model.loader import LoadedModel, open_model, reading_model, weight_bytes
from omlx_server.compute.planning.probe import one_token_caches
from omlx_server.compute.row_ends import verifies_drafts
from omlx_server.core.work import Work


def loading_part(
    path: Path, ranks: ConnectedRanks, known_as: str, scheme: Scheme | None = None
) -> Work[LoadedModel]:
    """Load this rank's part of a model. Its fingerprint names the rank."""
    dispatch.install()
    model, config = yield from opening_part(path, ranks, partial(open_model, path))
    dims = yield from reading_model(model, config, path, scheme)
    part_fingerprint = together_fingerprint(known_as, f"rank {ranks.rank} of {ranks.size}")
    verifies = verifies_drafts(model)
    return LoadedModel(model, dims, part_fingerprint, weight_bytes(model), verifies, ranks=ranks)


def room_of_all(loaded: LoadedModel, ranks: ConnectedRanks, room: int) -> int:
    """Return how many bytes of its `room` this rank may use. All ranks call it together."""
    token_bytes: int = max(1, sum(leaf.nbytes for leaf in leaves(one_token_caches(loaded.model))))
    most_token_bytes = ranks.most(token_bytes)
    return max(0, ranks.least(room)) * token_bytes // most_token_bytes
