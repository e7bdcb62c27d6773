"""The models of a server, as requests find them: what leaves the memory for whom."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from omlx_server.api.models.served_model import Served, ServedModel
from omlx_server.compute.model.loader import load as load_model
from omlx_server.core.memory.guard import Caches
from omlx_server.core.scheduler.memory_admission import HEADROOM
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.pool.entry import Lease
from omlx_server.models.adapters.files import read_adapter
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.model_factory import InstanceFactory
from omlx_server.wiring.open_models import Opened, open_models
from tests.adapters import save_adapter
from tests.engine.running import collect, request
from tests.service.made import save_small

PROMPT = list(range(1, 41))


async def opened_in(directory: Path, stack: AsyncExitStack) -> tuple[Opened, MemoryAccount]:
    settings = Settings.of(
        {
            "cache": {"hot_cache_only": True},
            "memory": {"activation_reserve": "64MB"},
            "models": {"dirs": (directory,), "use_hf_cache": False},
        }
    )
    known = KnownModels(settings, Located(directory / "one", ("one",)), FoundEncoders())
    await known.refresh()
    instances = InstanceFactory(settings)
    opened = await open_models(instances, known, lambda problem: None, stack)
    return opened, instances.account


async def acquired(opened: Opened, name: str) -> tuple[Lease[Served], Any]:
    listing = await opened.models.find_listing(name)
    lease = await opened.models.pool.acquire(listing.load_request)
    assert isinstance(lease.model, ServedModel)
    return lease, lease.model.engine


def test_adapters_that_nothing_uses_go_for_another_models_request(tmp_path: Path) -> None:
    """Their own model is in use, and stays."""
    for name in ("one", "two"):
        save_small(tmp_path / name)
    path = tmp_path / "one" / "adapters" / "tuned"
    save_adapter(path, load_model(tmp_path / "one").model)
    adapter = read_adapter(path, "tuned")

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            opened, account = await opened_in(tmp_path, stack)
            (lease, one), (other, two) = [await acquired(opened, name) for name in ("one", "two")]
            adapted = replace(request("adapted", PROMPT, 2), adapter=adapter)
            await collect(await one.submit(adapted))
            assert await one.ask(lambda own: own.adapters.names) == ("tuned",)
            weights = one.weight_bytes + two.weight_bytes
            await two.ask(lambda own: tighten(own, account, weights))
            assert await collect(await two.submit(request("plain", PROMPT, 2)))
            assert await one.ask(lambda own: own.adapters.names) == ()
            assert len(opened.models.loaded()) == 2
            lease.release()
            other.release()

    asyncio.run(scene())


def tighten(instance: ModelInstance, account: MemoryAccount, weights: int) -> None:
    """Have the memory fit one request and a short answer beside so many bytes of weights, but no
    adapter."""
    assert instance.watch is not None
    guard = instance.watch.guard
    guard.ledger = replace(guard.ledger, weights=weights)
    needed = next(
        limit
        for limit in range(weights, weights + (256 << 20), 1 << 10)
        if guard.under(limit, account.queue).ever_fits(Caches((len(PROMPT) + HEADROOM,)), 1)
    )
    account.limit = needed + (1 << 10)
    guard.change(account.limit, account.queue)
