"""A planner for who knows better: every step takes the same, as the settings say."""

from omlx_server.core.memory.bound import STRUCTURAL
from omlx_server.core.memory.estimate import CHUNK, Planner
from omlx_server.core.memory.shape import Decode, ModelShape, Prefill


class FlatPlanner(Planner):
    """`nbytes` for any step; caches are planned as ever."""

    def __init__(self, model: ModelShape, nbytes: int, chunk: int = CHUNK) -> None:
        super().__init__(model, STRUCTURAL, chunk)
        self._nbytes = nbytes

    def prefill(self, prefill: Prefill) -> int:
        return self._nbytes

    def decode(self, decode: Decode) -> int:
        return self._nbytes
