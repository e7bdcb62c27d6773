"""Loaded models, each with all that a request to it needs."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

from omlx_server.api.worker_threads import RunInThread, Turns
from omlx_server.core.adapters import Adapter
from omlx_server.core.images import ImageSpan
from omlx_server.core.prefix_cache.report import Dropped
from omlx_server.core.request import RequestDefaults
from omlx_server.engine.client.archives import PrefixArchives
from omlx_server.engine.client.encoders import DocumentScorer, EmbeddingClient
from omlx_server.engine.client.model_client import GeneratorClient, ModelClient
from omlx_server.errors import BadRequest
from omlx_server.images.decode import decode, inspect
from omlx_server.images.prepare.prepared import (
    Detail,
    Floats,
    ImagePlan,
    Prepared,
    Preparer,
    run_digest,
)
from omlx_server.images.source import from_image_url
from omlx_server.text.dialect import Dialect
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.image_marks import ImageMarkup, ImagePlaceholder
from omlx_server.text.overflow import Overflow
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.ranking.yes_no import YesNoPrompt
from omlx_server.text.reasoning.constraint import ReasoningMarkers
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

_CACHED_FILES = 8192


@dataclass(frozen=True, slots=True)
class TextOnly:
    """Stands in for the reader of a model without images. `why` may be empty."""

    why: str = ""

    def refusal(self, name: str, param: str) -> BadRequest:
        because = f": {self.why}" if self.why else ""
        return BadRequest(f"the model '{name}' takes text only{because}", param=param)


@dataclass(frozen=True, slots=True)
class GivenImage:
    """An image of a request. `url` should be a data URL; `param` names it in errors."""

    url: str
    param: str
    low: bool = False


@dataclass(frozen=True, slots=True)
class _FileFacts:
    """Facts of a decoded file: `full_size` is the size that the model sees at full detail, and
    `peak_bytes` the most that decoding holds. Sizes are height, width."""

    bitmap_size: tuple[int, int]
    bitmap_digest: bytes
    full_size: tuple[int, int]
    peak_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage:
    """An image of a request, for one model. `digest` is that of the prepared pixels, `making_bytes`
    the most that `prepared` holds, `full_size` the size at full detail."""

    data: bytes = field(repr=False)
    preparer: Preparer
    plan: ImagePlan
    digest: bytes
    making_bytes: int
    full_size: tuple[int, int]

    def prepared(self) -> Prepared:
        """Decode the file and prepare its pixels. Slow."""
        return self.preparer.prepare(decode(inspect(self.data).scaled_for(*self.full_size)))

    def runs(self) -> tuple[ImageSpan, ...]:
        plan = self.plan
        return tuple(
            ImageSpan(
                start=0,
                count=plan.run_tokens,
                digest=run_digest(self.digest, plan, number),
                advance=plan.advance,
                whole=self.preparer.whole,
                grid=plan.grid,
                pixels=partial(self._pixels, number),
                nbytes=plan.pixel_bytes // plan.runs,
            )
            for number in range(plan.runs)
        )

    def _pixels(self, run: int) -> Floats:
        return self.prepared().of_run(run)


@dataclass(frozen=True, slots=True, eq=False)
class ImageReader:
    """Reads images for a model. `set_aside` reserves bytes. An image gets at most `max_tokens`,
    where the model leaves a choice."""

    make_preparer: Callable[[Detail], Preparer]
    markup: ImageMarkup
    set_aside: Callable[[int], AbstractAsyncContextManager[None]]
    max_tokens: int | None = None
    max_per_request: int = 100
    _facts_by_file: OrderedDict[bytes, _FileFacts] = field(default_factory=OrderedDict)
    # The preparers for low detail (True) and for full detail.
    _preparers: Mapping[bool, Preparer] = field(init=False)

    def __post_init__(self) -> None:
        preparers = {low: self.make_preparer(Detail(self.max_tokens, low)) for low in (False, True)}
        object.__setattr__(self, "_preparers", preparers)

    def bounded(self, max_tokens: int, max_per_request: int) -> "ImageReader":
        return replace(self, max_tokens=max_tokens, max_per_request=max_per_request)

    async def read(self, images: Sequence[GivenImage], turns: Turns) -> list[ReadImage]:
        """Raises BadRequest for too many images or a bad one, and Unavailable if one got no turn or
        no memory in time (NoMemory: never can)."""
        most = self.max_per_request
        if len(images) > most:
            raise BadRequest(
                f"there are {len(images)} images, and {most} are the most", param=images[most].param
            )
        results = []
        for image in images:
            try:
                results.append(await self._read_image(image, turns))
            except BadRequest as error:
                error.param = image.param
                raise
        return results

    async def _read_image(self, image: GivenImage, turns: Turns) -> ReadImage:
        async with turns() as run_in_thread:
            data, file_digest = await run_in_thread(lambda _: _read_file(image))
            facts = self._facts_by_file.get(file_digest)
            if facts is None:
                facts = await self._decode_facts(data, run_in_thread)
            self._cache_facts(file_digest, facts)
        preparer = self._preparers[image.low]
        plan = preparer.plan(*facts.bitmap_size)
        making_bytes = facts.peak_bytes + plan.working_bytes + plan.pixel_bytes
        pixel_digest = preparer.digest(facts.bitmap_digest)
        return ReadImage(data, preparer, plan, pixel_digest, making_bytes, facts.full_size)

    async def _decode_facts(self, data: bytes, run_in_thread: RunInThread) -> _FileFacts:
        header = await run_in_thread(lambda _: inspect(data))
        full_size = self._preparers[False].plan(*header.upright).size
        scaled = header.scaled_for(*full_size)
        async with self.set_aside(scaled.peak_bytes):
            bitmap_digest = await run_in_thread(lambda _: decode(scaled).digest)
        return _FileFacts(scaled.upright, bitmap_digest, full_size, scaled.peak_bytes)

    def shown(self, image: ReadImage) -> ImagePlaceholder:
        return ImagePlaceholder(self.markup.write(image.plan.tiles), image.runs())

    def _cache_facts(self, file_digest: bytes, facts: _FileFacts) -> None:
        self._facts_by_file[file_digest] = facts
        self._facts_by_file.move_to_end(file_digest)
        if len(self._facts_by_file) > _CACHED_FILES:
            self._facts_by_file.popitem(last=False)


def _read_file(image: GivenImage) -> tuple[bytes, bytes]:
    data = from_image_url(image.url)
    return data, blake2b(data, digest_size=32).digest()


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
