"""Loaders of a server's models, made of its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.models.locate import Located
from omlx_server.settings import load
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.loading import Loading
from omlx_server.wiring.model_factory import InstanceFactory

FIXED = {"cache.hot_cache_only": "true", "memory.activation_reserve": "64MB"}


@asynccontextmanager
async def loading_of(
    model: Path,
    mode: str = "auto",
    drafter: str = "",
    reranker: Path | None = None,
    adapter: str = "",
) -> AsyncIterator[tuple[Loading, str]]:
    """A loader, and the key of that model. A draft model may be beside it, or a reranker; and it
    may have a default adapter."""
    places = {"models.dirs": str(model.parent), "models.use_hf_cache": "false"}
    drafts = {"speculation.mode": mode, "speculation.draft_model": drafter}
    settings = load(overrides=FIXED | places | drafts | {"adapters.default": adapter}).settings
    found = FoundEncoders(reranker=Located(reranker, (reranker.name,)) if reranker else None)
    known = KnownModels(settings, Located(model, (model.name,)), found)
    instances = InstanceFactory(settings)
    engine = AsyncEngine(
        lambda problem: None, instances.account, instances.close, instances.cold_report
    )
    await engine.start()
    try:
        yield (
            Loading(engine, instances, known, lambda key, problem: None, _no_way),
            known.first()[0].load_request.key,
        )
    finally:
        await engine.stop()


async def _no_way(key: str) -> bool:
    return False
