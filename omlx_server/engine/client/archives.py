"""Prefixes as archives: out of a running engine, and into it. Lives on the event loop's thread.

An archive is for another machine, so it names its model by all of the weights' bytes, also where
the engine itself knows them by samples.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

from omlx_server.core.blocks.keys import BlockKey, root_key
from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.blocks.record import Packed, Part, Record
from omlx_server.engine.client.model_client import LaneClient
from omlx_server.engine.model_instance import Lane
from omlx_server.errors import BadRequest, NotCached
from omlx_server.store.archives.archive import (
    About,
    Member,
    Rerooting,
    archive_parts,
    read_archive,
)
from omlx_server.store.archives.tar import BadArchive
from omlx_server.store.mediums.medium import Buffer

_POLL_SECONDS = 0.01
_BLOCKS_AT_A_TIME = 16  # become arrays between two steps
_OVERHEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """`cached` of the prompt's tokens are in it; `parts` make the file, one behind the other."""

    cached: int
    parts: Iterator[Buffer]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an archive held; `added` of its blocks and states were not there before."""

    tokens: int
    blocks: int
    states: int
    added: int


class PrefixArchives:
    """`model` is its name; `fingerprint` covers every byte of the weights, and may take long."""

    def __init__(self, engine: LaneClient, model: str, fingerprint: Callable[[], str]) -> None:
        self._engine = engine
        self._model = model
        self._fingerprint = fingerprint

    @property
    def max_bytes(self) -> int:
        """What can be taken in: no more than the memory may hold."""
        return self._engine.status.cache.budget + _OVERHEAD_BYTES

    async def export(self, tokens: tuple[int, ...], salt: bytes) -> Exported:
        """What is known of a prompt, in memory and in the cold tier.

        Raises:
            NotCached: nothing is.
        """
        namespace = await self._namespace()
        ticket = await self._engine.ask(lambda lane: lane.cache.enter(tokens, salt, ()))
        try:
            while await self._engine.ask(lambda lane: ticket.awaits_cold):
                await asyncio.sleep(_POLL_SECONDS)
            packed = await self._engine.ask(lambda lane: _packed(lane, ticket))
        finally:
            await self._engine.ask(lambda lane: lane.cache.leave(ticket))
        needs_state = self._engine.status.cache.checkpointed
        cached = _cached(packed, needs_state=needs_state)
        if not cached:
            raise NotCached("nothing of this prompt is in the cache; ask it once, then export it")
        about = About(namespace.name, self._model, namespace.block_size, int(time.time()))
        return Exported(cached, await asyncio.to_thread(_parts, about, packed))

    async def take_in(self, data: bytes, salt: bytes) -> Imported:
        """Keep the blocks of an archive, all of which is verified before.

        Raises:
            BadRequest: it is damaged, or made by another model.
        """
        namespace = await self._namespace()
        about, found = await asyncio.to_thread(_read, data)
        if about.namespace != namespace.name:
            raise BadRequest(
                f"the archive was made with another model or KV format ({about.model}), "
                f"not with {self._model} as it is served here"
            )
        root = root_key(namespace.own, salt)
        blocks = _rerooted(found, about.root, root, namespace.own)
        added = 0
        for first in range(0, len(blocks), _BLOCKS_AT_A_TIME):
            adopt = partial(_adopt, blocks=blocks[first : first + _BLOCKS_AT_A_TIME], root=root)
            added += await self._engine.ask(adopt)
        states = sum(block.record.part is Part.STATE for block in blocks)
        tokens = max(block.record.stop for block in blocks)
        return Imported(tokens, len(blocks) - states, states, added)

    async def _namespace(self) -> "_Namespace":
        own, size, cached = await self._engine.ask(
            lambda lane: (lane.cache.namespace, lane.cache.layout.block_size, lane.cache.keeps)
        )
        if not cached:
            raise BadRequest("this server keeps no prefixes of this model")
        fingerprint = await asyncio.to_thread(self._fingerprint)
        return _Namespace(own, f"{fingerprint}|{own.partition('|')[2]}", size)


@dataclass(frozen=True, slots=True)
class _Namespace:
    """`own` is the engine's name for it, `name` that for other machines."""

    own: str
    name: str
    block_size: int


def _packed(lane: Lane, ticket: Ticket) -> list[tuple[Record, Packed]]:
    return lane.packed(ticket)


def _cached(packed: Sequence[tuple[Record, Packed]], *, needs_state: bool) -> int:
    """How many tokens of the prompt need not be computed with these blocks."""
    useful = (record for record, _ in packed if record.part is Part.STATE or not needs_state)
    return max((record.stop for record in useful), default=0)


def _parts(about: About, packed: Sequence[tuple[Record, Packed]]) -> Iterator[Buffer]:
    members = [Member.of(replace(r, namespace=about.namespace), p) for r, p in packed]
    return archive_parts(about, members)


def _read(data: bytes) -> tuple[About, list[tuple[Record, Packed]]]:
    try:
        archive = read_archive(BytesIO(data), max_bytes=len(data))
        return archive.about, list(archive)
    except BadArchive as error:
        raise BadRequest(f"this is no archive that can be used: {error}") from None


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A block or a state, as it will hang here; `above` are the tokens before a state."""

    record: Record
    above: tuple[int, ...]
    packed: Packed


def _rerooted(
    found: Sequence[tuple[Record, Packed]], old: BlockKey, new: BlockKey, namespace: str
) -> list[_Arrival]:
    rerooting = Rerooting(old, new)
    known: dict[BlockKey, Record] = {}
    arrivals = []
    for record, packed in found:
        moved = replace(rerooting.moved(record), namespace=namespace)
        is_state = moved.part is Part.STATE
        if not is_state:
            known[moved.key] = moved
        arrivals.append(_Arrival(moved, _above(moved, known) if is_state else (), packed))
    return arrivals


def _above(record: Record, known: Mapping[BlockKey, Record]) -> tuple[int, ...]:
    """The tokens of all blocks that a record follows."""
    chain: list[Record] = []
    parent = known.get(record.parent)
    while parent is not None:
        chain.append(parent)
        parent = known.get(parent.parent)
    return tuple(token for block in reversed(chain) for token in block.tokens)


def _adopt(lane: Lane, *, blocks: Sequence[_Arrival], root: BlockKey) -> int:
    """How many of them are new."""
    try:
        return sum(
            lane.adopt(block.record, root, (*block.above, *block.record.tokens), block.packed)
            for block in blocks
        )
    except ValueError as error:
        raise BadRequest(f"the archive's arrays can't be used: {error}") from None
