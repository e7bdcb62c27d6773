"""What the HTTP side knows of models that read without writing: embedding models and rerankers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from omlx_server.core.encoded import Encoded
from omlx_server.engine.client.encoders import Embeddings, Scores
from omlx_server.engine.client.model_client import ModelClient
from omlx_server.errors import BadRequest
from omlx_server.text.ranking.pairs import InputEncoder


@dataclass(frozen=True, slots=True)
class Role:
    """What a model is for, in the words of messages to clients."""

    kind: Literal["chat", "embedding", "rerank"]
    noun: str
    route: str
    flag: str


CHAT = Role("chat", "a chat model", "/v1/chat/completions", "MODEL")
EMBEDDING = Role("embedding", "an embedding model", "/v1/embeddings", "--embedding-model")
RERANKING = Role("rerank", "a reranker", "/v1/rerank", "--reranker")


class PairEncoder(Protocol):
    """Makes an input of a query and each document, at most `limit` tokens long."""

    def encode_pairs(self, query: str, documents: Sequence[str], limit: int) -> list[Encoded]: ...


@dataclass(frozen=True, slots=True, eq=False)
class ServedEmbedder:
    names: tuple[str, ...]
    client: ModelClient[Any]
    encoder: InputEncoder
    embeddings: Embeddings


@dataclass(frozen=True, slots=True, eq=False)
class ServedReranker:
    """`client` is None for one that is another side of a model that chats."""

    names: tuple[str, ...]
    client: ModelClient[Any] | None
    encoder: PairEncoder
    scores: Scores[Any]


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
