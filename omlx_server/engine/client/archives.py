"""Archives of prefixes for other machines. They name their model by a hash of all its weights."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

from omlx_server.compute.payload import pack, size_of, unpack
from omlx_server.core.adapters import Adapter
from omlx_server.core.blocks.keys import BlockKey, root_key
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import BadRequest, NotCached
from omlx_server.store.archives.archive import (
    ArchiveMember,
    ArchiveOrigin,
    Rerooting,
    archive_parts,
    read_archive,
)
from omlx_server.store.archives.tar import BadArchive
from omlx_server.store.mediums.medium import Buffer

_POLL_SECONDS = 0.01
_BLOCKS_AT_A_TIME = 16  # unpacked between two steps
_OVERHEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """An archive of a prompt's first `cached` tokens; `parts` are its bytes."""

    cached: int
    parts: Iterator[Buffer]


@dataclass(frozen=True, slots=True)
class Imported:
    """Counts of an archive: tokens, blocks, checkpoints, and those that were `added`."""

    tokens: int
    blocks: int
    checkpoints: int
    added: int


class PrefixArchives:
    """Exports and imports of one model's prefixes. `fingerprint` hashes all weights."""

    def __init__(self, engine: GeneratorClient, model: str, fingerprint: Callable[[], str]) -> None:
        self._engine = engine
        self._model = model
        self._fingerprint = fingerprint

    @property
    def max_bytes(self) -> int:
        """Bytes of the largest archive for `take_in`, which its caller checks."""
        return self._engine.status.counted.cache.budget + _OVERHEAD_BYTES

    async def export(
        self, tokens: tuple[int, ...], salt: bytes, adapter: Adapter | None = None
    ) -> Exported:
        """Return an archive of a prompt's blocks. Raises NotCached, Unavailable, BadRequest."""
        _, origin = await self._namespace_and_origin(adapter)
        handle = await self._engine.ask(lambda instance: instance.cache.enter(tokens, salt, ()))
        try:
            while await self._engine.ask(lambda instance: handle.awaits_cold):
                await asyncio.sleep(_POLL_SECONDS)
            packed = await self._engine.ask(lambda instance: pack_blocks(instance, handle))
        finally:
            await self._engine.ask(lambda instance: instance.cache.leave(handle))
        needs_checkpoint = self._engine.status.counted.cache.checkpointed
        cached = _count_restorable_tokens(packed, needs_checkpoint=needs_checkpoint)
        if not cached:
            raise NotCached("nothing of this prompt is in the cache; ask it once, then export it")
        return Exported(cached, await asyncio.to_thread(_make_archive, origin, packed))

    async def take_in(self, data: bytes, salt: bytes, adapter: Adapter | None = None) -> Imported:
        """Verify an archive and keep its blocks in memory. Raises Unavailable, BadRequest."""
        namespace, own = await self._namespace_and_origin(adapter)
        origin, stored = await asyncio.to_thread(_read_archive, data)
        if origin.namespace != own.namespace:
            raise BadRequest(
                f"the archive was made with another model, adapter or KV format ({origin.model}), "
                f"not with {own.model} as it is served here"
            )
        blocks = _reroot(stored, origin.root, root_key(namespace, salt), namespace)
        added = 0
        for start in range(0, len(blocks), _BLOCKS_AT_A_TIME):
            adopt = partial(_adopt_blocks, blocks=blocks[start : start + _BLOCKS_AT_A_TIME])
            added += await self._engine.ask(adopt)
        checkpoints = sum(record.part is RecordKind.CHECKPOINT for record, _ in blocks)
        tokens = max(record.stop for record, _ in blocks)
        return Imported(tokens, len(blocks) - checkpoints, checkpoints, added)

    async def _namespace_and_origin(self, adapter: Adapter | None) -> tuple[str, ArchiveOrigin]:
        """Return the namespace of this server's blocks, and what its archives say of them."""
        namespace, block_size = await self._engine.ask(_namespace_and_block_size)
        fingerprint = await asyncio.to_thread(self._fingerprint)
        model = self._model
        if adapter is not None:
            fingerprint, model = f"{fingerprint}+{adapter.digest.hex()}", f"{model}:{adapter.name}"
        kv_format = namespace.partition("|")[2]  # a namespace is "<model>|<KV format>"
        origin = ArchiveOrigin(f"{fingerprint}|{kv_format}", model, block_size, int(time.time()))
        return namespace, origin


def _namespace_and_block_size(instance: ModelInstance) -> tuple[str, int]:
    if instance.ranks.are_several:
        raise BadRequest("the prefixes of this model are in parts on several machines")
    if not instance.cache.layout.keeps:
        raise BadRequest("this server keeps no prefixes of this model")
    return instance.cache.namespace, instance.cache.layout.block_size


def _count_restorable_tokens(
    packed: Sequence[tuple[Record, PackedArrays]], *, needs_checkpoint: bool
) -> int:
    ends = [
        record.stop
        for record, _ in packed
        if record.part is RecordKind.CHECKPOINT or not needs_checkpoint
    ]
    return max(ends, default=0)


def _make_archive(
    origin: ArchiveOrigin, packed: Sequence[tuple[Record, PackedArrays]]
) -> Iterator[Buffer]:
    members = [ArchiveMember.of(replace(r, namespace=origin.namespace), p) for r, p in packed]
    return archive_parts(origin, members)


def _read_archive(data: bytes) -> tuple[ArchiveOrigin, list[tuple[Record, PackedArrays]]]:
    try:
        archive = read_archive(BytesIO(data), max_bytes=len(data))
        return archive.manifest.about, list(archive)
    except BadArchive as error:
        raise BadRequest(f"this is no archive that can be used: {error}") from None


def _reroot(
    blocks: Sequence[tuple[Record, PackedArrays]], old: BlockKey, new: BlockKey, namespace: str
) -> list[tuple[Record, PackedArrays]]:
    rerooting = Rerooting(old, new)
    return [(replace(rerooting.moved(r), namespace=namespace), packed) for r, packed in blocks]


def pack_blocks(instance: ModelInstance, handle: PrefixHandle) -> list[tuple[Record, PackedArrays]]:
    packed = []
    for id, record in instance.cache.path(handle):
        payload = instance.tiers.hot[id]
        if record.part is RecordKind.BLOCK:
            payload = payload.first(len(record.tokens))
        packed.append((record, pack(payload)))
    return packed


def _adopt_blocks(instance: ModelInstance, *, blocks: Sequence[tuple[Record, PackedArrays]]) -> int:
    added = 0
    for record, packed in blocks:
        try:
            payload = unpack(packed)
        except ValueError as error:
            raise BadRequest(f"the archive's arrays can't be used: {error}") from None
        id = instance.cache.insert(record, size_of(payload))
        if id is not None:
            instance.tiers.put(id, payload)
            instance.tiers.mark_computed([id])
            added += 1
        instance.drop_evicted()
    return added
