"""Prompts that wait for their turn."""

from typing import Any

from omlx_server.core.blocks.block import CacheLayout, LayerKind
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.step import SequenceId
from tests.core.simulator import ROOMY, make_request

A, B = b"a", b"b"
CACHE = PrefixCache(CacheLayout(frozenset({LayerKind.DELTA}), block_size=4), "model", ROOMY)


def prefill(name: str, length: int, order: int = 0, **changes: Any) -> PrefillState:
    request = make_request(name, length, 5, **changes)
    sequence = Sequence(SequenceId(request.id, 0), request)
    return PrefillState([sequence], order, CACHE.enter(request.tokens[:-1], b"", ()))


def in_order(turns: PrefillOrder, now: float, *prefills: PrefillState) -> list[str]:
    return [p.request.id for p in turns.in_order(prefills, now)]


def served(turns: PrefillOrder, owner: bytes, seconds: float) -> None:
    turns.begin_step(0)
    turns.note_plan([], [prefill("x", 5, owner=owner)])
    turns.charge_chunks((), seconds)
    turns.begin_step(0)
