"""The HTTP side of encoders, the models that write no text: embedding models and rerankers."""

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
    """What a model is for. `noun`, `route` and `flag` are used in error messages: what such a model
    is called, the route that needs it, and the command-line option that serves one."""

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
    """A model that ranks documents. `client` is None where a chat model does it, which has a client
    of its own."""

    names: tuple[str, ...]
    client: ModelClient[Any] | None
    encoder: InputEncoder | YesNoPrompt
    scores: Scores[Any]


def for_another_route(name: str, roles: Sequence[Role], wanted: Role, hint: str) -> BadRequest:
    """The error for a request whose model exists, but is not for this route (`wanted`)."""
    nouns = " and ".join(role.noun for role in roles)
    routes = " or ".join(role.route for role in roles)
    return BadRequest(
        f"'{name[:200]}' is {nouns}, for {routes}; {wanted.route} needs {wanted.noun}. {hint}",
        param="model",
    )


def hint_for(role: Role, names: Sequence[str]) -> str:
    """A sentence that tells a client which models of that role there are, or how to serve one."""
    if names:
        return f"This server has: {', '.join(sorted(names))}"
    return f"This server has none: start it with {role.flag} NAME"
