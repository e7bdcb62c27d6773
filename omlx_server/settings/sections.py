"""Every setting of the server: its type, its bounds, its default. Contradictions raise
ConfigError."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from msgspec import Meta, field
from msgspec.structs import replace

from omlx_server.core.speculation.methods import Mode
from omlx_server.errors import ConfigError
from omlx_server.settings import types
from omlx_server.settings.fields import Field, Section, fields_of
from omlx_server.settings.overrides import ModelOverrides, explicit_values, merged, without
from omlx_server.settings.types import (
    AtHome,
    ByteSize,
    Conversion,
    Live,
    Secret,
    Size,
    Wording,
    is_loopback,
)


class ServerSettings(Section, frozen=True):
    host: types.Host = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    uds: types.SocketPath = ""
    max_body_bytes: Annotated[int, Meta(ge=2**10, le=2**30), ByteSize(), Live()] = 32 * 2**20
    max_header_bytes: Annotated[int, Meta(ge=2**10, le=2**20), ByteSize()] = 16 * 2**10
    header_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 10
    body_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 10
    write_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 30
    allowed_hosts: Annotated[
        tuple[types.HostName, ...],
        Wording("a list of host names without ports"),
        Live(),
    ] = ("localhost", "127.0.0.1")
    cors_origins: Annotated[
        tuple[types.Origin, ...],
        Wording('a list of origins, as "https://chat.example.org", or "*"'),
        Live(),
    ] = ()
    request_timeout_seconds: Annotated[float, Meta(ge=0, le=86400), Live()] = 0
    shutdown_grace_seconds: Annotated[float, Meta(ge=0, le=3600), Live()] = 25
    sse_ping_seconds: Annotated[float, Meta(ge=0.1, le=300), Live()] = 5


class ProcessSettings(Section, frozen=True):
    keep_awake: Annotated[Literal["busy", "off"], Live()] = "busy"


class AuthSettings(Section, frozen=True):
    api_keys: Annotated[
        tuple[types.Key, ...],
        Wording("a list of keys of visible ASCII characters"),
        Live(),
    ] = ()
    admin: Literal["token", "key"] = "token"


_AFFINE_BITS = (2, 3, 4, 6, 8)
_BITS_OF_SCHEME: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "affine": _AFFINE_BITS,
        "rotated": _AFFINE_BITS,
        "turboquant": (2, 2.5, 3, 3.5, 4, 8),
    }
)


class KvCacheSettings(Section, frozen=True):
    """The form of keys and values, in the batch and in all tiers."""

    scheme: types.Scheme = "none"
    bits: types.Bits = 4
    group_size: types.GroupSize = 64

    def __post_init__(self) -> None:
        allowed = _BITS_OF_SCHEME.get(self.scheme, (self.bits,))
        if self.bits not in allowed:
            raise ConfigError(
                f"kv_cache.scheme {self.scheme} can't have {self.bits:g} bits",
                hint="it can have " + ", ".join(f"{bits:g}" for bits in allowed),
            )


class ModelsSettings(Section, frozen=True):
    dirs: Annotated[
        tuple[Path, ...],
        Meta(min_length=1),
        Conversion(types.with_own_models),
        Wording("a list of directories, at least one"),
    ] = field(default_factory=AtHome((types.OWN_MODELS,)))
    use_hf_cache: bool = True
    default: str = ""
    embedding: str = ""
    reranker: str = ""
    autoload: Annotated[bool, Live()] = True
    max_loaded: Annotated[int, Meta(ge=0, le=1000), Live()] = 0
    idle_ttl_seconds: Annotated[types.IdleSeconds, Live()] = 0
    pinned: Annotated[tuple[str, ...], Wording("a list of names of models"), Live()] = ()
    aliases: Annotated[
        dict[str, str], Wording('names by name, as {"small" = "org/name"}'), Live()
    ] = field(default_factory=dict)
    overrides: Annotated[
        dict[str, ModelOverrides],
        Wording('tables by model name, as {"org/name" = {kv_cache = {bits = 8}}}'),
    ] = field(default_factory=dict)

    def resolve_alias(self, name: str) -> str:
        """Return the final name. Raises ConfigError for a cycle."""
        names = [name]
        while target := self.aliases.get(names[-1]):
            if target in names:
                raise ConfigError(
                    f"models.aliases lead round in a ring: {' -> '.join([*names, target])}",
                    hint="one of them must stand for a model",
                )
            names.append(target)
        return names[-1]

    def __post_init__(self) -> None:
        for alias in self.aliases:
            self.resolve_alias(alias)


class SchedulerSettings(Section, frozen=True):
    max_batch_size: Annotated[int, Meta(ge=1, le=256), Live()] = 8
    max_queue: Annotated[int, Meta(ge=1, le=100_000), Live()] = 128
    prefill_chunk_tokens: types.AutoChunk = "auto"
    max_batched_tokens: Annotated[int, Meta(ge=64, le=65536)] = 2048
    decode_share: Annotated[float, Meta(ge=0, le=0.9), Live()] = 0.2
    longest_dispatch: types.AutoSeconds = "auto"
    policy: Literal["fair", "fcfs"] = "fair"

    def __post_init__(self) -> None:
        for key in ("prefill_chunk_tokens", "max_batch_size"):
            tokens = getattr(self, key)
            if tokens != "auto" and tokens > self.max_batched_tokens:
                raise ConfigError(
                    f"scheduler.{key} ({tokens}) is more than "
                    f"scheduler.max_batched_tokens ({self.max_batched_tokens})",
                    hint="one step must have room for it: raise max_batched_tokens",
                )


class MemorySettings(Section, frozen=True):
    """The memory that the server may use."""

    limit: Annotated[types.AutoLimit, Live()] = "auto"
    reserve: Annotated[types.AutoSize, Live()] = "auto"
    activation_reserve: types.AutoSize = "auto"
    wired: types.WiredSize = "off"
    pressure: Annotated[Literal["auto", "off"], Live()] = "auto"


class CacheSettings(Section, frozen=True):
    enabled: bool = True
    block_tokens: Annotated[
        Literal[16, 32, 64, 128, 256, 512, 1024], Wording("16, 32, 64 … 1024")
    ] = 64
    hot_cache_max_bytes: Annotated[types.AutoSize, Live()] = "auto"
    hot_cache_only: Annotated[bool, Live("turning it on applies while the server runs")] = False
    cold_dir: types.Directory = field(default_factory=AtHome("~/.cache/omlx_server/kv"))
    cold_cache_max_bytes: Annotated[Size, Live()] = 20 * 10**9
    cold_min_free_disk: Annotated[Size, Live()] = 10 * 10**9
    cold_write_queue_bytes: Annotated[Size, Live()] = 512 * 10**6
    cold_writes_per_day: Annotated[Size, Live()] = 100 * 10**9
    cold_write_through: Annotated[bool, Live()] = False
    cold_ttl_days: Annotated[float, Meta(ge=0, le=36500)] = 0
    checkpoint_max_bytes: Annotated[types.AutoSize, Live()] = "auto"
    salt: Literal["per-key", "shared"] = "per-key"
    remote: Annotated[Secret, Wording("a URL as redis://host:6379/0 or s3://bucket/prefix")] = (
        field(default_factory=Secret)
    )

    @property
    def has_cold(self) -> bool:
        """Whether a cold tier is wanted; its directory may be unusable."""
        return self.enabled and not self.hot_cache_only


class SpeculationSettings(Section, frozen=True):
    """Drafts of the next tokens, several of which one step verifies. They change no answer."""

    mode: Annotated[Mode, Live()] = "auto"
    draft_model: types.ModelName = ""


class AdaptersSettings(Section, frozen=True):
    """LoRA adapters, which requests ask for by name."""

    directory: types.MaybeDirectory = ""
    default: types.AdapterName = ""
    max_loaded: Annotated[int, Meta(ge=1, le=256), Live()] = 8
    max_bytes: Annotated[Size, Live()] = 2 * 10**9


class SamplingSettings(Section, frozen=True):
    source: Annotated[Literal["model", "openai"], Live()] = "model"
    max_tokens: Annotated[types.MaxTokens, Live()] = 0


class ImagesSettings(Section, frozen=True):
    """Images in conversations, for models that can see."""

    enabled: bool = True
    max_tokens: Annotated[int, Meta(ge=16, le=65536), Live()] = 4096
    max_per_request: Annotated[int, Meta(ge=1, le=1000), Live()] = 100


class ResponsesSettings(Section, frozen=True):
    """The store of answers of /v1/responses, so that others can go on from them."""

    store: Literal["memory", "disk", "off"] = "memory"
    directory: types.Directory = field(default_factory=AtHome("~/.cache/omlx_server/responses"))
    max_entries: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    max_bytes: Size = 128 * 2**20


class ContextSettings(Section, frozen=True):
    """The handling of conversations that outgrow the context."""

    overflow: Annotated[Literal["error", "truncate", "rolling"], Live()] = "error"
    low_water: Annotated[float, Meta(ge=0.1, le=0.9), Live()] = 0.5


class LoggingSettings(Section, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Live()] = "info"
    format: Annotated[Literal["auto", "rich", "json"], Live()] = "auto"
    file: types.LogFile = ""


class TracingSettings(Section, frozen=True):
    enabled: bool = False


class MetricsSettings(Section, frozen=True):
    """GET /metrics, and whose metric names it has beside our own."""

    enabled: bool = True
    compat: Annotated[tuple[Literal["vllm"], ...], Wording('["vllm"] or []')] = ("vllm",)


class AdminSettings(Section, frozen=True):
    """Routes that load and unload models, and the like."""

    enabled: bool = True


class WebSettings(Section, frozen=True):
    """The page that a browser gets."""

    enabled: bool = True


class OllamaSettings(Section, frozen=True):
    """Ollama's API below /api, for clients that know no other."""

    enabled: bool = True


class ClusterSettings(Section, frozen=True):
    """One model that several machines compute together."""

    hosts: types.HostsFile = ""
    address: str = ""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    backend: Literal["ring", "jaccl"] = "ring"
    program: types.ProgramName = "omlx-server"
    secret: Annotated[Secret, Wording("a text that all ranks know")] = field(default_factory=Secret)


class Settings(Section, frozen=True):
    """All sections, by default without any file or environment variable."""

    server: ServerSettings = field(default_factory=ServerSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    kv_cache: KvCacheSettings = field(default_factory=KvCacheSettings)
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    adapters: AdaptersSettings = field(default_factory=AdaptersSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    context: ContextSettings = field(default_factory=ContextSettings)
    images: ImagesSettings = field(default_factory=ImagesSettings)
    responses: ResponsesSettings = field(default_factory=ResponsesSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    admin: AdminSettings = field(default_factory=AdminSettings)
    web: WebSettings = field(default_factory=WebSettings)
    ollama: OllamaSettings = field(default_factory=OllamaSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    def overrides_of(self, names: Iterable[str]) -> ModelOverrides:
        """Return a model's overrides, merged from those of its `names` and aliases. A later name
        wins, and an alias wins over all names."""
        all_names = list(dict.fromkeys(names))
        all_names += [
            alias for alias in self.models.aliases if self.models.resolve_alias(alias) in all_names
        ]
        result: dict[str, object] = {}
        for name in all_names:
            overrides = self.models.overrides.get(name)
            if overrides is not None:
                result = merged(result, explicit_values(overrides))
        return ModelOverrides.of(result)

    def kv_cache_of(self, names: Iterable[str]) -> KvCacheSettings:
        return replace(self.kv_cache, **explicit_values(self.overrides_of(names).kv_cache))

    def speculation_of(self, names: Iterable[str]) -> SpeculationSettings:
        return replace(self.speculation, **explicit_values(self.overrides_of(names).speculation))

    def default_adapter_of(self, names: Iterable[str], *, served: bool) -> str:
        """Return the adapter for requests that name none, or "". Only the `served` model, with
        which the server was started, has `adapters.default`."""
        adapter = self.overrides_of(names).adapter
        if adapter is not None:
            return adapter
        return self.adapters.default if served else ""

    def without_overrides(self, keys: Collection[str]) -> Self:
        """Return the settings without models' overrides of these keys, because a flag counts for
        every model."""
        overrides = {
            name: without(override, keys) for name, override in self.models.overrides.items()
        }
        return replace(self, models=replace(self.models, overrides=overrides))

    def __post_init__(self) -> None:
        for error in self.contradictions():
            raise error

    def contradictions(self) -> Iterator[ConfigError]:
        """Yield what sections say against each other."""
        yield from self._check_overrides()
        yield from self._check_chunks_are_made_of_blocks()
        yield from self._check_strangers_need_a_key()

    def _check_overrides(self) -> Iterator[ConfigError]:
        for name in self.models.overrides:
            try:
                self.kv_cache_of([name])
            except ConfigError as error:
                where = f"models.overrides of {name}"
                yield ConfigError(f"{where}: {error.message}", hint=error.hint)

    def _check_chunks_are_made_of_blocks(self) -> Iterator[ConfigError]:
        chunk, block = self.scheduler.prefill_chunk_tokens, self.cache.block_tokens
        if chunk != "auto" and chunk % block:
            yield ConfigError(
                f"scheduler.prefill_chunk_tokens ({chunk}) is not a multiple of "
                f"cache.block_tokens ({block})",
                hint="blocks are cut where chunks end: choose both as powers of two",
            )

    def _check_strangers_need_a_key(self) -> Iterator[ConfigError]:
        is_open = not self.server.uds and not is_loopback(self.server.host)
        if is_open and not self.auth.api_keys:
            yield ConfigError(
                f"server.host {self.server.host} is open to other machines, "
                "and auth.api_keys is empty",
                hint="`omlx-server config set auth.api_keys -` asks for a key of your choice, and "
                "OMLX_AUTH__API_KEYS=secret gives one; or bind 127.0.0.1",
            )


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {name: key.annotation for name, key in fields_of(Settings).items()}
)
FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        f"{name}.{key}": field
        for name, section in SECTIONS.items()
        for key, field in fields_of(section).items()
    }
)
KEYS = tuple(FIELDS)
