"""Every setting of the server: its type, its bounds, its default, and the text that explains it.
Contradictions raise ConfigError."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from msgspec import Meta, field
from msgspec.structs import replace

from omlx_server.errors import ConfigError
from omlx_server.settings import types
from omlx_server.settings.fields import Field, Section, fields_of
from omlx_server.settings.model_sections import (
    AdaptersSettings,
    CacheSettings,
    ContextSettings,
    ImagesSettings,
    KvCacheSettings,
    MemorySettings,
    ModelsSettings,
    ResponsesSettings,
    SamplingSettings,
    SchedulerSettings,
    SpeculationSettings,
)
from omlx_server.settings.overrides import ModelOverrides, explicit_values, merged, without
from omlx_server.settings.types import ByteSize, Live, Secret, Wording, is_loopback


class ServerSettings(Section, frozen=True):
    host: types.Host = "127.0.0.1"
    """Where to listen. Any address but this machine's own (127.0.0.1, ::1, localhost) makes the
    server reachable for others, and it then refuses to start without auth.api_keys."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """The port to listen on. 0 takes any free port; the line that says "ready" tells which."""
    uds: types.SocketPath = ""
    """A Unix socket to listen on instead of host and port; only this user can open it."""
    max_body_bytes: Annotated[int, Meta(ge=2**10, le=2**30), ByteSize(), Live()] = 32 * 2**20
    """A larger request gets a 413."""
    max_header_bytes: Annotated[int, Meta(ge=2**10, le=2**20), ByteSize()] = 16 * 2**10
    """A larger request line with its headers gets a 431."""
    header_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 10
    """How long a request line with its headers may take to come; then it ends with a 408."""
    body_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 10
    """How long a body may pause, and how much longer than at 64 kB/s it may take; then a 408. A
    large body waits at most this long for room beside others."""
    write_timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600)] = 30
    """A client that reads nothing of its answer for this long loses its connection."""
    allowed_hosts: Annotated[
        tuple[types.HostName, ...],
        Wording("a list of host names without ports"),
        Live(),
    ] = ("localhost", "127.0.0.1")
    """Names that a request's Host header may have, without port, against DNS rebinding by web
    pages. When others connect by another name or address, add it here."""
    cors_origins: Annotated[
        tuple[types.Origin, ...],
        Wording('a list of origins, as "https://chat.example.org", or "*"'),
        Live(),
    ] = ()
    """Origins of web pages that may call this server from a browser, as "https://chat.example.org".
    "*" allows every page: any page that you visit can then use this server."""
    request_timeout_seconds: Annotated[float, Meta(ge=0, le=86400), Live()] = 0
    """How long one request may wait and run before it ends with a 504; 0 sets no limit."""
    shutdown_grace_seconds: Annotated[float, Meta(ge=0, le=3600), Live()] = 25
    """After SIGTERM or Ctrl-C running answers get this long to finish; a second signal ends at
    once. Let a service manager wait a little longer."""
    sse_ping_seconds: Annotated[float, Meta(ge=0.1, le=300), Live()] = 5
    """While a long prompt is read, a stream sends a comment this often: nobody gives up."""


class ProcessSettings(Section, frozen=True):
    keep_awake: Annotated[Literal["busy", "off"], Live()] = "busy"
    """Keep a Mac from falling asleep by itself: "busy" while requests run or models are fetched,
    and for half a minute longer; "off" never. A closed lid sends it to sleep all the same."""


class AuthSettings(Section, frozen=True):
    api_keys: Annotated[
        tuple[types.Key, ...],
        Wording("a list of keys of visible ASCII characters"),
        Live(),
    ] = ()
    """Keys that clients may send as "Authorization: Bearer KEY" or "x-api-key: KEY". Without any,
    the server listens on this machine's own addresses only. Better set as OMLX_AUTH__API_KEYS=a,b
    in the environment than written in a file."""
    admin: Literal["token", "key"] = "token"
    """Who may load and unload models: "token" is whoever can read this server's own token in a file
    of this user (omlx-server's commands do), "key" is whoever may ask at all."""


class LoggingSettings(Section, frozen=True):
    level: Annotated[Literal["debug", "info", "warning", "error"], Live()] = "info"
    """How much is logged. Prompts, answers and keys are never logged, at any level."""
    format: Annotated[Literal["auto", "rich", "json"], Live()] = "auto"
    """How lines look: text for people, one JSON object each, or "auto": text on a terminal and JSON
    elsewhere (docs/observability.md)."""
    file: types.LogFile = ""
    """Where the log goes; "" is stderr. At 10 MB a file becomes FILE.1, and five of these are kept.
    The background service (docs/service.md) has a file of its own where none is named here."""


class TracingSettings(Section, frozen=True):
    enabled: bool = False
    """Make OpenTelemetry spans of every request: queue, prefill, decode. Needs the extra "otel".
    Without this it is on where OTEL_EXPORTER_OTLP_ENDPOINT, which says where they go, is set."""


class MetricsSettings(Section, frozen=True):
    enabled: bool = True
    """Whether GET /metrics is there."""
    compat: Annotated[tuple[Literal["vllm"], ...], Wording('["vllm"] or []')] = ("vllm",)
    """Other servers whose names of metrics are used, too: boards made for vLLM work here."""


class AdminSettings(Section, frozen=True):
    enabled: bool = True
    """Whether models can be loaded, unloaded and pinned over HTTP, as `omlx-server load` does."""


class WebSettings(Section, frozen=True):
    enabled: bool = True
    """Whether a browser gets the page: talk, models, memory and cache, log, settings. All but talk
    needs the routes of [admin]. The page's files hold no data and need no key; its requests do."""


class OllamaSettings(Section, frozen=True):
    enabled: bool = True
    """Whether the routes of Ollama's API are there, below /api (docs/ollama.md)."""


class ClusterSettings(Section, frozen=True):
    hosts: types.HostsFile = ""
    """One model that several machines compute together (docs/cluster.md): the path of a hosts file,
    JSON as `mlx.distributed_config` writes it. The first host is this machine. "" is no cluster."""
    address: str = ""
    """The address of this machine at which the ranks of all other machines reach it. "" is the
    first address of the first host."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The port of cluster.address; 0 takes any free one."""
    backend: Literal["ring", "jaccl"] = "ring"
    """How MLX connects the ranks: "ring" over TCP; "jaccl" over Thunderbolt 5 is experimental, and
    needs the RDMA devices ("rdma") of each host in the hosts file."""
    program: types.ProgramName = "omlx-server"
    """The program on the other machines, as ssh finds it: a name or a path."""
    secret: Annotated[Secret, Wording("a text that all ranks know")] = field(default_factory=Secret)
    """A text that all ranks know, for ranks that you start yourself (`omlx-server rank`). With ""
    the server starts them, and gives each a secret that it has made."""


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
