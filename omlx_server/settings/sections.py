"""Every setting of the server: its type, its bounds, its default.

A `Settings` that exists is valid; what is wrong is a one-line `ConfigError`.
"""

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic.fields import FieldInfo

from omlx_server.errors import ConfigError
from omlx_server.settings.types import (
    AutoChunk,
    AutoLimit,
    AutoSize,
    Directory,
    Host,
    HostName,
    IsSize,
    Key,
    Live,
    LogFile,
    Origin,
    PowerOfTwo,
    Says,
    Size,
    SocketPath,
    parse_size,
    tuple_of,
)


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, hide_input_in_errors=True
    )


class Server(Section):
    host: Host = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    uds: SocketPath = ""
    max_body_bytes: Annotated[
        int, Field(ge=2**10, le=2**30), BeforeValidator(parse_size), IsSize(), Live()
    ] = 8 * 2**20
    max_header_bytes: Annotated[
        int, Field(ge=2**10, le=2**20), BeforeValidator(parse_size), IsSize()
    ] = 16 * 2**10
    header_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 10
    body_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 10
    write_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600)] = 30
    allowed_hosts: Annotated[
        tuple[HostName, ...],
        BeforeValidator(tuple_of),
        Says("a list of host names without ports"),
        Live(),
    ] = ("localhost", "127.0.0.1")
    cors_origins: Annotated[
        tuple[Origin, ...],
        BeforeValidator(tuple_of),
        Says('a list of origins, as "https://chat.example.org", or "*"'),
        Live(),
    ] = ()
    request_timeout_seconds: Annotated[float, Field(ge=0, le=86400), Live()] = 0
    shutdown_grace_seconds: Annotated[float, Field(ge=0, le=3600), Live()] = 25
    sse_ping_seconds: Annotated[float, Field(ge=0.1, le=300), Live()] = 5


class Auth(Section):
    api_keys: Annotated[
        tuple[Key, ...],
        BeforeValidator(tuple_of),
        Says("a list of keys of visible ASCII characters"),
        Live(),
    ] = ()
    admin: Literal["token", "key"] = "token"


IdleSeconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400)]
Scheme = Literal["none", "affine", "rotated", "turboquant"]
GroupSize = Annotated[Literal[32, 64, 128], Says("32, 64 or 128")]
_AFFINE_BITS = (2, 3, 4, 6, 8)
_BITS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "affine": _AFFINE_BITS,
        "rotated": _AFFINE_BITS,
        "turboquant": (2, 2.5, 3, 3.5, 4, 8),
    }
)


class KvCache(Section):
    """How keys and values are kept, in the batch and in all tiers."""

    scheme: Scheme = "none"
    bits: Annotated[float, Field(ge=2, le=8)] = 4
    group_size: GroupSize = 64

    @model_validator(mode="after")
    def _the_scheme_has_these_bits(self) -> Self:
        known = _BITS.get(self.scheme, (self.bits,))
        if self.bits not in known:
            raise ConfigError(
                f"kv_cache.scheme {self.scheme} can't have {self.bits:g} bits",
                hint="it can have " + ", ".join(f"{bits:g}" for bits in known),
            )
        return self


class KvCacheOverride(Section):
    """What a model has otherwise than `kv_cache` says."""

    scheme: Scheme | None = None
    bits: Annotated[float, Field(ge=2, le=8)] | None = None
    group_size: GroupSize | None = None


class SamplingOverride(Section):
    """What counts for a field that a request leaves out."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=10_000_000)] | None = None


class ModelOverrides(Section):
    """What one model has otherwise. `ttl` is its `models.idle_ttl_seconds`; an empty parser is the
    one that its template asks for."""

    context_length: Annotated[int, Field(ge=16, le=100_000_000)] | None = None
    ttl: IdleSeconds | None = None
    pin: bool = False
    tool_parser: str = ""
    reasoning_parser: str = ""
    sampling: SamplingOverride = Field(default_factory=SamplingOverride)
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    kv_cache: KvCacheOverride = Field(default_factory=KvCacheOverride)


class Models(Section):
    dirs: Annotated[
        tuple[Directory, ...],
        BeforeValidator(tuple_of),
        Field(min_length=1),
        Says("a list of directories, at least one"),
    ] = (Path("~/.cache/omlx_server/models"),)
    use_hf_cache: bool = True
    default: str = ""
    embedding: str = ""
    reranker: str = ""
    autoload: Annotated[bool, Live()] = True
    max_loaded: Annotated[int, Field(ge=0, le=1000), Live()] = 0
    idle_ttl_seconds: Annotated[IdleSeconds, Live()] = 0
    pinned: Annotated[
        tuple[str, ...], BeforeValidator(tuple_of), Says("a list of names of models"), Live()
    ] = ()
    aliases: Annotated[dict[str, str], Says('names by name, as {"small" = "org/name"}'), Live()] = (
        Field(default_factory=dict)
    )
    overrides: Annotated[
        dict[str, ModelOverrides],
        Says('tables by model name, as {"org/name" = {kv_cache = {bits = 8}}}'),
    ] = Field(default_factory=dict)

    def meant(self, name: str) -> str:
        """What an alias stands for in the end; any other name is itself."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    @model_validator(mode="after")
    def _aliases_lead_somewhere(self) -> Self:
        for alias in self.aliases:
            seen = [alias]
            while (name := self.aliases.get(seen[-1])) is not None:
                if name in seen:
                    ring = " -> ".join([*seen, name])
                    raise ConfigError(
                        f"models.aliases lead round in a ring: {ring}",
                        hint="one of them must stand for a model",
                    )
                seen.append(name)
        return self


class Scheduler(Section):
    max_batch_size: Annotated[int, Field(ge=1, le=256), Live()] = 8
    max_queue: Annotated[int, Field(ge=1, le=100_000), Live()] = 128
    prefill_chunk_tokens: AutoChunk = "auto"
    max_batched_tokens: Annotated[int, Field(ge=64, le=65536)] = 2048
    decode_share: Annotated[float, Field(ge=0, le=0.9), Live()] = 0.2
    policy: Literal["fair", "fcfs"] = "fair"

    @model_validator(mode="after")
    def _a_step_holds_a_chunk_and_every_row(self) -> Self:
        parts = {
            "prefill_chunk_tokens": self.prefill_chunk_tokens,
            "max_batch_size": self.max_batch_size,
        }
        for key, value in parts.items():
            if value != "auto" and value > self.max_batched_tokens:
                raise ConfigError(
                    f"scheduler.{key} ({value}) is more than "
                    f"scheduler.max_batched_tokens ({self.max_batched_tokens})",
                    hint="one step must have room for it: raise max_batched_tokens",
                )
        return self


class Memory(Section):
    """What the server may use of the machine."""

    limit: Annotated[AutoLimit, Live()] = "auto"
    reserve: Annotated[AutoSize, Live()] = "auto"
    activation_reserve: AutoSize = "auto"


class Cache(Section):
    enabled: bool = True
    block_tokens: Annotated[int, Field(ge=16, le=1024), PowerOfTwo, Says("16, 32, 64 … 1024")] = 64
    hot_cache_max_bytes: Annotated[AutoSize, Live()] = "auto"
    hot_cache_only: Annotated[bool, Live("turning it on applies while the server runs")] = False
    cold_dir: Directory = Path("~/.cache/omlx_server/kv")
    cold_cache_max_bytes: Annotated[Size, Live()] = 20 * 10**9
    cold_min_free_disk: Annotated[Size, Live()] = 10 * 10**9
    cold_write_queue_bytes: Annotated[Size, Live()] = 512 * 10**6
    cold_write_through: Annotated[bool, Live()] = False
    cold_ttl_days: Annotated[float, Field(ge=0, le=36500)] = 0
    checkpoint_max_bytes: Annotated[AutoSize, Live()] = "auto"
    salt: Literal["per-key", "shared"] = "per-key"
    remote: Annotated[SecretStr, Says("a URL as redis://host:6379/0 or s3://bucket/prefix")] = (
        SecretStr("")
    )


class Sampling(Section):
    source: Annotated[Literal["model", "openai"], Live()] = "model"
    max_tokens: Annotated[int, Field(ge=0, le=10_000_000), Live()] = 0


class Responses(Section):
    """Where answers of /v1/responses stay, so that others can go on from them."""

    store: Literal["memory", "disk", "off"] = "memory"
    directory: Directory = Path("~/.cache/omlx_server/responses")
    max_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    max_bytes: Size = 128 * 2**20


class Context(Section):
    """What happens to conversations that outgrow it."""

    overflow: Annotated[Literal["error", "truncate", "rolling"], Live()] = "error"
    low_water: Annotated[float, Field(ge=0.1, le=0.9), Live()] = 0.5


class Logging(Section):
    level: Annotated[Literal["debug", "info", "warning", "error"], Live()] = "info"
    format: Annotated[Literal["auto", "rich", "json"], Live()] = "auto"
    file: LogFile = ""


class Tracing(Section):
    enabled: bool = False


class Metrics(Section):
    """GET /metrics, and whose names it has beside our own."""

    enabled: bool = True
    compat: Annotated[
        tuple[Literal["vllm"], ...], BeforeValidator(tuple_of), Says('["vllm"] or []')
    ] = ("vllm",)


class Admin(Section):
    """Routes that load and unload models, and the like."""

    enabled: bool = True


class Settings(Section):
    """All sections. `Settings()` is the server as it comes, without files or environment."""

    server: Server = Field(default_factory=Server)
    auth: Auth = Field(default_factory=Auth)
    models: Models = Field(default_factory=Models)
    scheduler: Scheduler = Field(default_factory=Scheduler)
    memory: Memory = Field(default_factory=Memory)
    cache: Cache = Field(default_factory=Cache)
    kv_cache: KvCache = Field(default_factory=KvCache)
    sampling: Sampling = Field(default_factory=Sampling)
    context: Context = Field(default_factory=Context)
    responses: Responses = Field(default_factory=Responses)
    logging: Logging = Field(default_factory=Logging)
    tracing: Tracing = Field(default_factory=Tracing)
    metrics: Metrics = Field(default_factory=Metrics)
    admin: Admin = Field(default_factory=Admin)

    def overrides_of(self, names: Iterable[str]) -> ModelOverrides:
        """Those of a model, by whichever of its names has some; of two that say something of the
        same, that of the later name counts, and that of an alias most."""
        called = list(dict.fromkeys(names))
        called += [alias for alias in self.models.aliases if self.models.meant(alias) in called]
        found: dict[str, object] = {}
        for name in called:
            own = self.models.overrides.get(name)
            if own is not None:
                found = _merged(found, own.model_dump(exclude_unset=True, exclude_none=True))
        return ModelOverrides.model_validate(found)

    def kv_cache_of(self, names: Iterable[str]) -> KvCache:
        """That of a model."""
        changes = self.overrides_of(names).kv_cache.model_dump(exclude_none=True)
        return KvCache.model_validate({**self.kv_cache.model_dump(), **changes})

    def without_overrides(self, keys: Collection[str]) -> Self:
        """A flag says what it says for every model: these keys of `kv_cache` have no override."""
        dropped = dict.fromkeys(key for key in KvCache.model_fields if key in keys)
        if not (dropped and self.models.overrides):
            return self
        overrides = {
            name: own.model_copy(update={"kv_cache": own.kv_cache.model_copy(update=dropped)})
            for name, own in self.models.overrides.items()
        }
        models = self.models.model_copy(update={"overrides": overrides})
        return self.model_copy(update={"models": models})

    @model_validator(mode="after")
    def _every_override_makes_sense(self) -> Self:
        for name in self.models.overrides:
            self.kv_cache_of([name])
        return self

    @model_validator(mode="after")
    def _chunks_are_made_of_blocks(self) -> Self:
        chunk, block = self.scheduler.prefill_chunk_tokens, self.cache.block_tokens
        if chunk != "auto" and chunk % block:
            raise ConfigError(
                f"scheduler.prefill_chunk_tokens ({chunk}) is not a multiple of "
                f"cache.block_tokens ({block})",
                hint="blocks are cut where chunks end: choose both as powers of two",
            )
        return self

    @model_validator(mode="after")
    def _strangers_need_a_key(self) -> Self:
        by_port = not self.server.uds
        if by_port and not _is_loopback(self.server.host) and not self.auth.api_keys:
            raise ConfigError(
                f"server.host {self.server.host} is open to other machines, "
                "and auth.api_keys is empty",
                hint="set a key, for example OMLX_AUTH__API_KEYS=$(openssl rand -hex 24), "
                "or bind 127.0.0.1",
            )
        return self


def _merged(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Tables are merged key by key, anything else is the other's."""
    merged = {**one, **other}
    for key, value in other.items():
        mine = one.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(mine, value)
    return merged


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        yield name, field.annotation


FIELDS: Mapping[str, FieldInfo] = MappingProxyType(
    {
        f"{name}.{key}": field
        for name, section in _sections()
        for key, field in section.model_fields.items()
    }
)
KEYS = tuple(FIELDS)
