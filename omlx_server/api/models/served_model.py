"""Loaded models, each with all that a request to it needs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from omlx_server.api.models.image_reader import ImageReader, TextOnly
from omlx_server.core.adapters import Adapter
from omlx_server.core.prefix_cache.report import Dropped
from omlx_server.core.request import RequestDefaults
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.encoders import DocumentScorer, EmbeddingClient
from omlx_server.engine.client.model_client import GeneratorClient, ModelClient
from omlx_server.errors import BadRequest
from omlx_server.text.dialect import Dialect
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.overflow import Overflow
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.ranking.yes_no import YesNoPrompt
from omlx_server.text.reasoning.constraint import ReasoningMarkers
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

TemplateValue = bool | int | float | str


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
    scores: DocumentScorer[Any]


@dataclass(frozen=True, slots=True)
class Preset:
    """Defaults and template variables; those of the request win."""

    defaults: RequestDefaults
    template_kwargs: Mapping[str, TemplateValue]


def _refuse_to_judge() -> ServedReranker:
    raise BadRequest("this model can't judge documents")


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A loaded chat model.

    `system_fingerprint` names weights, KV format, device and versions. Token ids are below `vocab`;
    `created` is in seconds since 1970; `markers` are those of reasoning. `judge` returns the model
    as a reranker; it raises BadRequest and ModelUnavailable. `recommended`: its makers' sampling
    values.
    """

    names: tuple[str, ...]
    system_fingerprint: str
    engine: GeneratorClient
    archives: PrefixArchives
    tokenizer: Tokenizer
    template: ChatTemplate
    context_length: int
    vocab: int
    created: int
    grammars: Grammars
    markers: ReasoningMarkers | None = None
    dialect: Dialect = field(default_factory=Dialect)
    strips_reasoning: bool = False
    overflow: Overflow = field(default_factory=Overflow)
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    judge: Callable[[], ServedReranker] = _refuse_to_judge
    recommended: Mapping[str, float] = field(default_factory=dict)
    template_kwargs: Mapping[str, TemplateValue] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(default_factory=dict)
    images: ImageReader | TextOnly = field(default_factory=TextOnly)
    adapter: Adapter | None = None

    def with_adapter(self, adapter: Adapter | None) -> "ServedModel":
        """Return the model with an adapter and its own fingerprint; itself for None."""
        if adapter is None:
            return self
        name = f"{self.system_fingerprint}_{adapter.digest.hex()[:8]}"
        return replace(self, adapter=adapter, system_fingerprint=name)

    @property
    def full_name(self) -> str:
        name = self.names[0]
        return name if self.adapter is None else f"{name}:{self.adapter.name}"

    async def reset_cache(self, salt: bytes | None) -> Dropped:
        """Drop the unused blocks of a salt, or with None of all. Returns what was dropped."""
        return await self.engine.ask(lambda instance: instance.reset_cache(salt))

    def with_preset(self, name: str | None) -> "ServedModel":
        """Return the model with a preset's defaults; itself for None. Raises BadRequest."""
        if name is None:
            return self
        check_preset(self.names[0], name, self.presets)
        preset = self.presets[name]
        return replace(self, defaults=preset.defaults, template_kwargs=preset.template_kwargs)


def check_preset(model: str, name: str | None, presets: Collection[str]) -> None:
    if name is None or name in presets:
        return
    others = f"it has {', '.join(presets)}" if presets else "it has none"
    raise BadRequest(f"{model} has no preset {name[:64]!r}: {others}", param="preset")


Served = ServedModel | ServedEmbedder | ServedReranker


def role_of(model: Served) -> Role:
    if isinstance(model, ServedModel):
        return CHAT
    return EMBEDDING if isinstance(model, ServedEmbedder) else RERANKING
