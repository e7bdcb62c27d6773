"""Encoders (compute/embed) on the mlx thread, and their clients."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from omlx_server.compute.embed.batch import BatchWork, Numbers, gather_results
from omlx_server.compute.embed.embedder import Embedder, InputLimits
from omlx_server.core.encoded import TokenizedText
from omlx_server.engine.client.model_client import ModelClient
from omlx_server.engine.memory.account import MemoryShare
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.messages import Removable

M = TypeVar("M")
R = TypeVar("R", bound=Removable)


class EncoderModel(Generic[M]):
    """An encoder with its share of the memory. Mlx thread."""

    def __init__(self, model: M, share: MemoryShare) -> None:
        self.model = model
        self.room = JobRoom(share)
        self.weight_bytes = share.weights
        self._share = share

    def leave(self) -> None:
        del self.model
        self._share.leave()


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingClient:
    """Asks an embedding model for vectors. `limits` bound its inputs."""

    client: ModelClient[EncoderModel[Embedder]]
    limits: InputLimits

    @classmethod
    async def of(cls, client: ModelClient[EncoderModel[Embedder]]) -> "EmbeddingClient":
        return cls(client, await client.ask(lambda resident: resident.model.limits))

    async def embed(
        self, inputs: Sequence[TokenizedText], dimensions: int | None = None
    ) -> Numbers:
        """Return vectors float32 [n, D], in order. Raises BadRequest, or as ModelClient.work."""

        def embed_all(encoder: EncoderModel[Embedder]) -> Generator[None, None, Numbers]:
            embed = encoder.model.embed
            start = partial(embed, inputs, dimensions=dimensions, room=encoder.room)
            return gather_results(start, len(inputs))

        return await self.client.work(embed_all)


@dataclass(frozen=True, slots=True, eq=False)
class DocumentScorer(Generic[R]):
    """Scores how well documents fit a query, by `judge`, which runs on the mlx thread."""

    client: ModelClient[R]
    judge: Callable[[R, Sequence[TokenizedText]], BatchWork]
    max_tokens: int

    async def score(self, inputs: Sequence[TokenizedText]) -> list[float]:
        """Return scores from 0 to 1, in order. Equal inputs score equally. Raises as `embed`."""
        different = list(dict.fromkeys(inputs))
        numbers = await self.client.work(
            lambda model: gather_results(lambda: self.judge(model, different), len(different))
        )
        scores: dict[TokenizedText, float] = dict(zip(different, numbers.tolist(), strict=True))
        return [scores[text] for text in inputs]
