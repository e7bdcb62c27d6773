"""Embedding models and rerankers, as their routes use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omlx_server.engine.client.encoders import EmbeddingClient, Scores
from omlx_server.engine.client.model_client import ModelClient
from omlx_server.errors import BadRequest
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.ranking.yes_no import YesNoPrompt


@dataclass(frozen=True, slots=True)
class Role:
    """A purpose of models. `noun`, `route` and `flag` (it serves one) are for error messages."""

    kind: Literal["chat", "embedding", "rerank", "unknown"]
    noun: str
    route: str
    flag: str


CHAT = Role("chat", "a chat model", "/v1/chat/completions", "MODEL")
EMBEDDING = Role("embedding", "an embedding model", "/v1/embeddings", "--embedding-model")
RERANKING = Role("rerank", "a reranker", "/v1/rerank", "--reranker")
NOTHING = Role("unknown", "a model for nothing that is known here", "", "")


@dataclass(frozen=True, slots=True, eq=False)
class ServedEmbedder:
    names: tuple[str, ...]
    client: ModelClient[Any]
    encoder: InputEncoder
    embeddings: EmbeddingClient


@dataclass(frozen=True, slots=True, eq=False)
class ServedReranker:
    """A model that ranks documents; `client` is None if it is a chat model."""

    names: tuple[str, ...]
    client: ModelClient[Any] | None
    encoder: InputEncoder | YesNoPrompt
    scores: Scores[Any]


def for_another_route(name: str, roles: Sequence[Role], wanted: Role, hint: str) -> BadRequest:
    """Return the error for a request to a model of another route."""
    nouns = " and ".join(role.noun for role in roles)
    routes = " or ".join(role.route for role in roles)
    return BadRequest(
        f"'{name[:200]}' is {nouns}, for {routes}; {wanted.route} needs {wanted.noun}. {hint}",
        param="model",
    )


def hint_for(role: Role, names: Sequence[str]) -> str:
    """Return a sentence with the models of a role, or how to serve one."""
    if names:
        return f"This server has: {', '.join(sorted(names))}"
    return f"This server has none: start it with {role.flag} NAME"
