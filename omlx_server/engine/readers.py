"""Models that read without writing (compute/embed), beside the one that writes: loaded and used on
the mlx thread, asked from asyncio. Their work is done in slices between the steps of the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from omlx_server.compute.embed.batch import Work
from omlx_server.compute.embed.embedder import Embedder, Limits
from omlx_server.compute.embed.gather import Numbers, gathered
from omlx_server.core.encoded import Encoded
from omlx_server.engine.client import AsyncEngine
from omlx_server.engine.lane import Lane
from omlx_server.errors import Unavailable

M = TypeVar("M")


class Resident(Generic[M]):
    """A model that is there once the mlx thread has called `start`."""

    def __init__(self, load: Callable[[], M]) -> None:
        self._load = load
        self._model: M | None = None

    def start(self) -> M:
        """Load it. On the mlx thread, before any request."""
        self._model = self._load()
        return self._model

    @property
    def model(self) -> M:
        """Arrays in it are the mlx thread's; its limits are anybody's. Raises Unavailable."""
        if self._model is None:
            raise Unavailable("the model is still being loaded")
        return self._model


class Embeddings:
    """Vectors of texts. Lives on the event loop's thread."""

    def __init__(self, engine: AsyncEngine, resident: Resident[Embedder]) -> None:
        self._engine = engine
        self._resident = resident

    @property
    def limits(self) -> Limits:
        """Raises Unavailable while the model is not loaded."""
        return self._resident.model.limits

    @property
    def dimension(self) -> int:
        """Raises Unavailable while the model is not loaded."""
        return self._resident.model.dimension

    async def embed(self, inputs: Sequence[Encoded], dimensions: int | None = None) -> Numbers:
        """float32 [n, D], in the order of the inputs. Cancelling ends the work within a slice.

        Raises:
            BadRequest: an input or `dimensions` does not suit the model.
            QueueFull, Unavailable: as AsyncEngine.work.
        """
        model = self._resident.model
        make = partial(model.embed, inputs, dimensions=dimensions)
        return await self._engine.work(lambda lane: gathered(make, len(inputs)))


class Scores:
    """How well documents fit a query. Lives on the event loop's thread.

    `score` does the work, on the mlx thread; `max_tokens` gives the length of the longest pair.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        score: Callable[[Lane, Sequence[Encoded]], Work],
        max_tokens: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._score = score
        self._max_tokens = max_tokens

    @property
    def max_tokens(self) -> int:
        """Of a query and a document together. Raises Unavailable while the model is not loaded."""
        return self._max_tokens()

    async def score(self, inputs: Sequence[Encoded]) -> list[float]:
        """Between 0 and 1, in the order of the inputs. Raises as Embeddings.embed."""
        numbers = await self._engine.work(
            lambda lane: gathered(lambda: self._score(lane, inputs), len(inputs))
        )
        scores: list[float] = numbers.tolist()
        return scores
