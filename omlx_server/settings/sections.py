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
    LogFile,
    Origin,
    PowerOfTwo,
    Says,
    Size,
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
    max_body_bytes: Annotated[
        int, Field(ge=2**10, le=2**30), BeforeValidator(parse_size), IsSize()
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
    ] = ("localhost", "127.0.0.1")
    cors_origins: Annotated[
        tuple[Origin, ...],
        BeforeValidator(tuple_of),
        Says('a list of origins, as "https://chat.example.org", or "*"'),
    ] = ()
    request_timeout_seconds: Annotated[float, Field(ge=0, le=86400)] = 0
    shutdown_grace_seconds: Annotated[float, Field(ge=0, le=3600)] = 25
    sse_ping_seconds: Annotated[float, Field(ge=0.1, le=300)] = 5


class Auth(Section):
    api_keys: Annotated[
        tuple[Key, ...],
        BeforeValidator(tuple_of),
        Says("a list of keys of visible ASCII characters"),
    ] = ()


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


class ModelOverrides(Section):
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
    overrides: Annotated[
        dict[str, ModelOverrides],
        Says('tables by model name, as {"org/name" = {kv_cache = {bits = 8}}}'),
    ] = Field(default_factory=dict)


class Scheduler(Section):
    max_batch_size: Annotated[int, Field(ge=1, le=256)] = 8
    max_queue: Annotated[int, Field(ge=1, le=100_000)] = 128
    prefill_chunk_tokens: AutoChunk = "auto"
    max_batched_tokens: Annotated[int, Field(ge=64, le=65536)] = 2048
    decode_share: Annotated[float, Field(ge=0, le=0.9)] = 0.2

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

    limit: AutoLimit = "auto"
    reserve: AutoSize = "auto"
    activation_reserve: AutoSize = "auto"


class Cache(Section):
    enabled: bool = True
    block_tokens: Annotated[int, Field(ge=16, le=1024), PowerOfTwo, Says("16, 32, 64 … 1024")] = 64
    hot_cache_max_bytes: AutoSize = "auto"
    hot_cache_only: bool = False
    cold_dir: Directory = Path("~/.cache/omlx_server/kv")
    cold_cache_max_bytes: Size = 20 * 10**9
    cold_min_free_disk: Size = 10 * 10**9
    cold_write_queue_bytes: Size = 512 * 10**6
    cold_write_through: bool = False
    cold_ttl_days: Annotated[float, Field(ge=0, le=36500)] = 0
    checkpoint_max_bytes: AutoSize = "auto"
    salt: Literal["per-key", "shared"] = "per-key"
    remote: Annotated[SecretStr, Says("a URL as redis://host:6379/0 or s3://bucket/prefix")] = (
        SecretStr("")
    )


class Sampling(Section):
    max_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class Responses(Section):
    """Where answers of /v1/responses stay, so that others can go on from them."""

    store: Literal["memory", "disk", "off"] = "memory"
    directory: Directory = Path("~/.cache/omlx_server/responses")
    max_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    max_bytes: Size = 128 * 2**20


class Context(Section):
    """What happens to conversations that outgrow it."""

    overflow: Literal["error", "truncate", "rolling"] = "error"
    low_water: Annotated[float, Field(ge=0.1, le=0.9)] = 0.5


class Logging(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "rich", "json"] = "auto"
    file: LogFile = ""


class Tracing(Section):
    enabled: bool = False


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

    def kv_cache_of(self, names: Iterable[str]) -> KvCache:
        """That of a model, by whichever of its names has an override."""
        changes: dict[str, object] = {}
        for name in names:
            own = self.models.overrides.get(name)
            if own is not None:
                changes |= own.kv_cache.model_dump(exclude_none=True)
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
        if not _is_loopback(self.server.host) and not self.auth.api_keys:
            raise ConfigError(
                f"server.host {self.server.host} is open to other machines, "
                "and auth.api_keys is empty",
                hint="set a key, for example OMLX_AUTH__API_KEYS=$(openssl rand -hex 24), "
                "or bind 127.0.0.1",
            )
        return self


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
