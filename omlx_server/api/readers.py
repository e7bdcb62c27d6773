"""What the HTTP side knows of models that read without writing: embedding models and rerankers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from omlx_server.core.encoded import Encoded
from omlx_server.engine.readers import Embeddings, Scores
from omlx_server.errors import BadRequest, Unavailable
from omlx_server.text.pairs import InputEncoder


@dataclass(frozen=True, slots=True)
class Role:
    """What a model is for, in the words of messages to clients."""

    noun: str
    route: str
    flag: str


CHAT = Role("a chat model", "/v1/chat/completions", "MODEL")
EMBEDDING = Role("an embedding model", "/v1/embeddings", "--embedding-model")
RERANKING = Role("a reranker", "/v1/rerank", "--reranker")


class PairEncoder(Protocol):
    """Makes one input of two texts, at most `limit` tokens long."""

    def encode_pair(self, query: str, document: str, limit: int) -> Encoded: ...


@dataclass(frozen=True, slots=True, eq=False)
class ServedEmbedder:
    names: tuple[str, ...]
    created: int
    encoder: InputEncoder
    embeddings: Embeddings

    @property
    def context_length(self) -> int:
        """Raises Unavailable while the model is being loaded."""
        return self.embeddings.limits.max_tokens


@dataclass(frozen=True, slots=True, eq=False)
class ServedReranker:
    names: tuple[str, ...]
    created: int
    encoder: PairEncoder
    scores: Scores

    @property
    def context_length(self) -> int:
        """Raises Unavailable while the model is being loaded."""
        return self.scores.max_tokens


Reader = ServedEmbedder | ServedReranker
R = TypeVar("R", ServedEmbedder, ServedReranker)


class Readers:
    """A fixed map from names to reading models. A name may stand for one model of each role."""

    def __init__(
        self,
        embedders: Sequence[ServedEmbedder] = (),
        rerankers: Sequence[ServedReranker] = (),
    ) -> None:
        self.embedders = {name: model for model in embedders for name in model.names}
        self.rerankers = {name: model for model in rerankers for name in model.names}

    def roles(self, name: str) -> list[Role]:
        """What the model of that name is for; empty when there is none."""
        by_role = ((EMBEDDING, self.embedders), (RERANKING, self.rerankers))
        return [role for role, models in by_role if name in models]

    def items(self) -> list[tuple[str, Reader]]:
        return [*self.embedders.items(), *self.rerankers.items()]


def for_another_route(name: str, roles: Sequence[Role], wanted: Role, hint: str) -> BadRequest:
    """The name is known, the model is for something else."""
    nouns = " and ".join(role.noun for role in roles)
    routes = " or ".join(role.route for role in roles)
    return BadRequest(
        f"'{name[:200]}' is {nouns}, for {routes}; {wanted.route} needs {wanted.noun}. {hint}",
        param="model",
    )


def hint_for(role: Role, names: Sequence[str]) -> str:
    """How to get a model of that role."""
    if names:
        return f"This server has: {', '.join(sorted(names))}"
    return f"This server has none: start it with {role.flag} NAME"


class HasLength(Protocol):
    @property
    def context_length(self) -> int: ...


def longest(model: HasLength) -> int | None:
    """The most tokens that a model reads at once; None while it is being loaded."""
    try:
        return model.context_length
    except Unavailable:
        return None
