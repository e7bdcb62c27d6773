"""One loaded model, as requests have it: a chat model with all that a request to it needs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from omlx_server.api.models import encoders
from omlx_server.api.models.encoders import Role, ServedEmbedder, ServedReranker
from omlx_server.api.models.image_reader import ImageReader, TextOnly
from omlx_server.core.adapters import Adapter
from omlx_server.core.prefix_cache.report import Dropped
from omlx_server.core.request import RequestDefaults
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.errors import BadRequest
from omlx_server.text.dialect import Dialect
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.overflow import Overflow
from omlx_server.text.reasoning.constraint import ReasoningMarkers
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

TemplateValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Preset:
    """What counts for a request that names a preset: `defaults` for fields that it leaves out, and
    the variables of the chat template, of which those that the request sends win."""

    defaults: RequestDefaults
    template_kwargs: Mapping[str, TemplateValue]


def _no_judge() -> ServedReranker:
    raise BadRequest("this model can't judge documents")


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """One chat model and everything that a request to it needs.

    `system_fingerprint` names what computes its answers (weights, KV format, device, versions).
    `archives` exports and imports prefixes. Token ids are below `vocab`. `context_length` is in
    tokens, `created` in seconds since 1970. `markers`: the markers of thoughts, as tokens. `judge`
    returns the same model as one that ranks documents; it raises BadRequest or ModelUnavailable
    where the model can't. `recommended`: the sampling values that its makers recommend.
    `template_kwargs`: variables of the chat template; those that a request sends win. `presets`, by
    name, stand for `defaults` and `template_kwargs` in requests that name one. `images` reads the
    images of requests, or says why the model takes none. `adapter` is the one that the request
    wants, or that counts where it names none.
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
    judge: Callable[[], ServedReranker] = _no_judge
    recommended: Mapping[str, float] = field(default_factory=dict)
    template_kwargs: Mapping[str, TemplateValue] = field(default_factory=dict)
    presets: Mapping[str, Preset] = field(default_factory=dict)
    images: ImageReader | TextOnly = field(default_factory=TextOnly)
    adapter: Adapter | None = None

    def adapted(self, adapter: Adapter | None) -> "ServedModel":
        """The model with an adapter, which has another fingerprint; itself with None."""
        if adapter is None:
            return self
        name = f"{self.system_fingerprint}_{adapter.digest.hex()[:8]}"
        return replace(self, adapter=adapter, system_fingerprint=name)

    @property
    def full_name(self) -> str:
        """Its first name, as MODEL:ADAPTER where it has an adapter."""
        name = self.names[0]
        return name if self.adapter is None else f"{name}:{self.adapter.name}"

    async def reset_cache(self, salt: bytes | None) -> Dropped:
        """Drop the blocks of one salt, or with None all that are not in use. Returns what there
        was."""
        return await self.engine.ask(lambda instance: instance.reset_cache(salt))

    def with_preset(self, name: str | None) -> "ServedModel":
        """The same model with the defaults of a preset; as it is for None. Raises BadRequest if it
        has no preset of that name."""
        if name is None:
            return self
        check_preset(self.names[0], name, self.presets)
        preset = self.presets[name]
        return replace(self, defaults=preset.defaults, template_kwargs=preset.template_kwargs)


def check_preset(model: str, name: str | None, presets: Collection[str]) -> None:
    """Raises BadRequest if a request names a preset that is not among those of its model."""
    if name is None or name in presets:
        return
    known = f"it has {', '.join(presets)}" if presets else "it has none"
    raise BadRequest(f"{model} has no preset {name[:64]!r}: {known}", param="preset")


Served = ServedModel | ServedEmbedder | ServedReranker


def role_of(model: Served) -> Role:
    """What a loaded model is for."""
    if isinstance(model, ServedModel):
        return encoders.CHAT
    return encoders.EMBEDDING if isinstance(model, ServedEmbedder) else encoders.RERANKING
