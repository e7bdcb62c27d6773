"""The blocks and pins of all models, as requests ask for them."""

from functools import partial

from omlx_server.core.blocks.pins import Pin, PinReport, Unpinned
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.wiring.model_factory import Lanes


class KeptBlocks:
    """Lives on the event loop's thread; what is asked happens on the mlx thread."""

    def __init__(self, engine: AsyncEngine, lanes: Lanes) -> None:
        self._engine = engine
        self._lanes = lanes

    async def clear_cold(self, salt: bytes | None) -> None:
        """Forget what the cold tier has, of models that are not loaded as well; of one salt if
        given."""
        await self._engine.call(partial(self._lanes.clear_cold, salt))

    async def pinned(self, pin: Pin) -> PinReport:
        """A model has made it."""
        return await self._engine.call(partial(self._lanes.pins.made, pin))

    async def pins(self, salt: bytes) -> list[PinReport]:
        """Those of one tenant, the oldest first."""
        return await self._engine.call(partial(self._lanes.pins.of, salt))

    async def unpin(self, id: str, salt: bytes) -> Unpinned:
        """End a pin of that tenant."""
        return await self._engine.call(partial(self._lanes.pins.end, id, salt))
