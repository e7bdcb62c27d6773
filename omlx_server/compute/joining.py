"""Joins the caches of rows that arrive with those of a batch."""

from collections.abc import Iterator

from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Cache


def join_layers(
    layers: Caches, incoming: list[Caches], *, own_solo: bool, solo: bool
) -> Iterator[Cache]:
    """The merged caches, layer by layer. Each is put into `layers` before it is yielded. `own_solo`
    and `solo`: whether `layers` and `incoming` are solo caches or those of a batch."""
    for number in range(len(layers)):
        layers[number] = _joined(layers, incoming, number, own_solo=own_solo, solo=solo)
        yield layers[number]


def _joined(
    layers: Caches, incoming: list[Caches], number: int, *, own_solo: bool, solo: bool
) -> Cache:
    """The cache of one layer with the incoming rows. Takes all of them out of their lists, so that
    their memory is freed as soon as it is copied."""
    own, layers[number] = layers[number], None
    members = [caches[number] for caches in incoming]
    for caches in incoming:
        caches[number] = None
    joining = members[0].merge(members) if solo else members[0]
    if own is None:
        return joining
    own = own.merge([own]) if own_solo else own
    own.extend(joining)
    return own
