"""Models that read without writing (compute/embed), beside those that write: loaded and used on
the mlx thread, asked from asyncio. Their work is done in slices between the steps of the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from omlx_server.compute.embed.batch import Work
from omlx_server.compute.embed.embedder import Embedder, Limits
from omlx_server.compute.embed.gather import Numbers, gathered
from omlx_server.core.encoded import Encoded
from omlx_server.engine.client.model_client import ModelClient
from omlx_server.engine.memory.account import Seat
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.thread import Resident

M = TypeVar("M")
R = TypeVar("R", bound=Resident)


class Reader(Generic[M]):
    """A model that reads, with its seat in the account of the memory, and the room that its jobs
    have there. Owned by the mlx thread."""

    def __init__(self, model: M, seat: Seat) -> None:
        self.model = model
        self.room = JobRoom(seat)
        self._seat = seat

    @property
    def weight_bytes(self) -> int:
        return self._seat.weights

    def leave(self) -> None:
        """Nothing of it is held any more."""
        del self.model
        self._seat.leave()


class Embeddings:
    """Vectors of texts. Lives on the event loop's thread."""

    def __init__(self, client: ModelClient[Reader[Embedder]], limits: Limits, size: int) -> None:
        self._client = client
        self.limits = limits
        self.dimension = size

    @classmethod
    async def of(cls, client: ModelClient[Reader[Embedder]]) -> "Embeddings":
        """Of a model that is loaded."""
        limits, size = await client.ask(lambda r: (r.model.limits, r.model.dimension))
        return cls(client, limits, size)

    async def embed(self, inputs: Sequence[Encoded], dimensions: int | None = None) -> Numbers:
        """float32 [n, D], in the order of the inputs. Cancelling ends the work within a slice.

        Raises:
            BadRequest: an input or `dimensions` does not suit the model.
            NoMemory: an input could never fit into the memory.
            QueueFull, Unavailable: as ModelClient.work.
        """

        def work(reader: Reader[Embedder]) -> Callable[[], Work]:
            return partial(reader.model.embed, inputs, dimensions=dimensions, room=reader.room)

        return await self._client.work(lambda reader: gathered(work(reader), len(inputs)))


class Scores(Generic[R]):
    """How well documents fit a query. Lives on the event loop's thread.

    `score` does the work, on the mlx thread; `max_tokens` is the length of the longest pair, of a
    query and a document together.
    """

    def __init__(
        self,
        client: ModelClient[R],
        score: Callable[[R, Sequence[Encoded]], Work],
        max_tokens: int,
    ) -> None:
        self._client = client
        self._score = score
        self.max_tokens = max_tokens

    async def score(self, inputs: Sequence[Encoded]) -> list[float]:
        """Between 0 and 1, in the order of the inputs. Equal inputs are read once and have equal
        scores, which those of different batches would not have to the last bit. Raises as
        Embeddings.embed."""
        different = list(dict.fromkeys(inputs))
        numbers = await self._client.work(
            lambda model: gathered(lambda: self._score(model, different), len(different))
        )
        scores: dict[Encoded, float] = dict(zip(different, numbers.tolist(), strict=True))
        return [scores[one] for one in inputs]
