"""Sequences that refer to all that they can."""

import gc
from typing import Any

import pytest

from omlx_server.compute.codecs.base import Cache, Codec
from omlx_server.compute.codecs.kv import PackedKVCodec
from omlx_server.compute.kv.spans import Strip
from omlx_server.compute.payload import BlockCodec
from tests.compute.drive import Drive

SIZE = 8


class Referring(BlockCodec):
    """Copies nothing that can be referred to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.runs.least = self.runs.short = 0


def adopt_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences go on in the buffers of one that has ended wherever they can, in float32 too."""

    def always(self: Codec, fresh: Cache, strip: Strip) -> bool:
        return True

    monkeypatch.setattr(PackedKVCodec, "adopts", always)


def check_books(drive: Drive) -> None:
    """At rest nobody uses a block, and what blocks refer to is what runs hold."""
    gc.collect()  # tracebacks of failures hold caches
    index, runs = drive.instance.cache.index, drive.runner.runs
    assert not index.in_use and not any(block.users for block in index.blocks())
    referred = sum(payload.referred_bytes for payload in drive.hot.values())
    assert runs.block_bytes == referred
    runs.tidy(wholly=True)
    assert runs.idle_bytes == drive.runner.live_bytes
    # Less than nothing where a short block is covered by a longer one of the same run.
    account, beyond = drive.instance.ledger(), runs.idle_bytes - runs.block_bytes
    assert not account.live and account.blocks == index.nbytes - index.checkpoint_bytes + beyond
    assert runs.idle_bytes <= runs.block_bytes * 5 / 4
