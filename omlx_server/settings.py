"""Every setting of the server: its type, its bounds, its default, and where its value came from.

Per key the strongest layer wins: flag or --set, then env OMLX_SECTION__KEY, then the file, then the
default. Invariant: a `Settings` that exists is valid; what is wrong is a one-line `ConfigError`.
"""

import difflib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from omlx_server.errors import ConfigError

_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_size(value: object) -> object:
    """Bytes of "8MiB" or "20 GB". What isn't such a text is left for the integer check to judge."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _UNITS:
        return value
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back as `size`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        count, rest = divmod(size, _UNITS[unit.lower()])
        if count and not rest:
            return f"{count}{unit}"
    return f"{size}B"


def _tuple_of(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _visible_ascii(key: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", key.get_secret_value()):
        raise ValueError("a key travels in an HTTP header")
    return key


def _expanded(value: str | Path) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:  # the home of an unknown user, or a process without one
        raise ConfigError(
            f"{value}: there is no such home directory", hint="set HOME, or write the whole path"
        ) from None


def _directory(value: object) -> object:
    return _expanded(value) if isinstance(value, str | Path) and value != "" else value


class IsSize:
    """Marks a byte size, so that messages and `config show` write it with a unit."""


class _Says(str):
    """What a key expects, where its bounds alone would not say it in plain words."""


Host = Annotated[
    str, Field(pattern=r"\A[A-Za-z0-9._:%-]+\z"), _Says("a host name or an IP address")
]
HostName = Annotated[str, Field(pattern=r"\A(\*|[A-Za-z0-9._:-]+)\z")]
Key = Annotated[SecretStr, AfterValidator(_visible_ascii)]
Directory = Annotated[Path, BeforeValidator(_directory)]


def _whole_number(value: object) -> object:
    """The number in a text of a flag; anything else is left for the integer check to judge."""
    return _number(value.strip()) if isinstance(value, str) else value


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("not a power of two")
    return value


_PowerOfTwo = AfterValidator(_power_of_two)
AutoSize = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=0, le=2**50)],
    BeforeValidator(parse_size),
    IsSize(),
    _Says('"auto", or bytes or a size like "8GiB"'),
]

Size = Annotated[int, Field(ge=0, le=2**50), BeforeValidator(parse_size), IsSize()]
AutoChunk = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=64, le=8192, multiple_of=64)],
    BeforeValidator(_whole_number),
    _Says('"auto", or an integer from 64 to 8192 in steps of 64'),
]


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
    allowed_hosts: Annotated[
        tuple[HostName, ...],
        BeforeValidator(_tuple_of),
        _Says("a list of host names without ports"),
    ] = ("localhost", "127.0.0.1")
    request_timeout_seconds: Annotated[float, Field(ge=0, le=86400)] = 0
    shutdown_grace_seconds: Annotated[float, Field(ge=0, le=3600)] = 25
    sse_ping_seconds: Annotated[float, Field(ge=0.1, le=300)] = 5


class Auth(Section):
    api_keys: Annotated[
        tuple[Key, ...],
        BeforeValidator(_tuple_of),
        _Says("a list of keys of visible ASCII characters"),
    ] = ()


class Models(Section):
    dirs: Annotated[
        tuple[Directory, ...],
        BeforeValidator(_tuple_of),
        Field(min_length=1),
        _Says("a list of directories, at least one"),
    ] = (Path("~/.cache/omlx_server/models"),)
    use_hf_cache: bool = True
    default: str = ""


class Scheduler(Section):
    max_batch_size: Annotated[int, Field(ge=1, le=256)] = 8
    max_queue: Annotated[int, Field(ge=1, le=100_000)] = 128
    prefill_chunk_tokens: AutoChunk = "auto"
    max_batched_tokens: Annotated[int, Field(ge=64, le=65536)] = 2048

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


class Cache(Section):
    enabled: bool = True
    block_tokens: Annotated[int, Field(ge=16, le=1024), _PowerOfTwo, _Says("16, 32, 64 … 1024")] = (
        64
    )
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
    remote: Annotated[SecretStr, _Says("a URL as redis://host:6379/0 or s3://bucket/prefix")] = (
        SecretStr("")
    )


class Sampling(Section):
    max_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class Logging(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(Section):
    """All sections. `Settings()` is the server as it comes, without files or environment."""

    server: Server = Field(default_factory=Server)
    auth: Auth = Field(default_factory=Auth)
    models: Models = Field(default_factory=Models)
    scheduler: Scheduler = Field(default_factory=Scheduler)
    cache: Cache = Field(default_factory=Cache)
    sampling: Sampling = Field(default_factory=Sampling)
    logging: Logging = Field(default_factory=Logging)

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


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    source: Path | None
    origins: Mapping[str, str]
    """Of each "section.key": flag | env NAME | file PATH | default."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value as one layer gives it. Texts of flags and env are not typed yet."""

    value: object
    origin: str
    is_text: bool


def _sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        yield name, field.annotation


_FIELDS: Mapping[str, FieldInfo] = MappingProxyType(
    {
        f"{name}.{key}": field
        for name, section in _sections()
        for key, field in section.model_fields.items()
    }
)
KEYS = tuple(_FIELDS)


def load(
    config: Path | None = None,
    overrides: Mapping[str, str] = MappingProxyType({}),
    environ: Mapping[str, str] = os.environ,
) -> Loaded:
    """The settings in force. `overrides` maps "section.key" to the text of a flag or --set."""
    source = find_config(config, environ)
    entries = _from_file(source) if source else {}
    entries |= _from_environ(environ)
    entries |= _from_flags(overrides)
    values: dict[str, dict[str, object]] = {name: {} for name in Settings.model_fields}
    for dotted, entry in entries.items():
        section, key = dotted.split(".")
        values[section][key] = _checked(dotted, entry)
    origins = {key: entries[key].origin if key in entries else "default" for key in KEYS}
    return Loaded(Settings.model_validate(values), source, MappingProxyType(origins))


def search_path() -> tuple[Path, ...]:
    """Where a config file is looked for when neither --config nor $OMLX_CONFIG names one."""
    return (
        Path("omlx.toml"),
        _expanded("~/.config/omlx_server/config.toml"),
        Path("/etc/omlx_server/config.toml"),
    )


def find_config(config: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The config file in use, if any. A file that was named must exist."""
    named = config or (Path(environ["OMLX_CONFIG"]) if environ.get("OMLX_CONFIG") else None)
    if named is None:
        return next((path for path in search_path() if path.is_file()), None)
    if not named.is_file():
        by = "--config" if config else "OMLX_CONFIG"
        raise ConfigError(f"config file {named} not found ({by})", hint="check the path")
    return named


# --- The three layers ----------------------------------------------------------------------------


def _from_file(path: Path) -> dict[str, _Entry]:
    origin = f"file {path}"
    entries = {}
    for section, table in _parse_toml(path).items():
        if section not in Settings.model_fields:
            raise _unknown(section, origin)
        if not isinstance(table, dict):
            raise ConfigError(f"{section}: expected a table [{section}] ({origin})")
        for key, value in table.items():
            if f"{section}.{key}" not in _FIELDS:
                raise _unknown(f"{section}.{key}", origin)
            entries[f"{section}.{key}"] = _Entry(value, origin, is_text=False)
    return entries


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"config file {path} can't be read: {reason}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, line, column = _toml_position(str(error), text)
        raise ConfigError(
            f"{path}, line {line}, column {column}: invalid TOML: {what}",
            hint='texts need quotes, as in host = "127.0.0.1"',
        ) from None


def _toml_position(message: str, text: str) -> tuple[str, int, int]:
    """tomllib tells the place inside its message, and says "end of document" without numbers."""
    what, _, place = message.partition(" (at ")
    if numbers := re.fullmatch(r"line (\d+), column (\d+)\)", place):
        return what, int(numbers[1]), int(numbers[2])
    lines = text.split("\n")
    return what, len(lines), len(lines[-1]) + 1


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Entry]:
    """OMLX_SECTION__KEY. OMLX_SERVER_PORT is a slip of the same kind, so it is refused too."""
    ours = tuple(f"OMLX_{section.upper()}_" for section in Settings.model_fields)
    by_name = {_env_name(key): key for key in KEYS}
    entries = {}
    for name, text in environ.items():
        if name in by_name:
            entries[by_name[name]] = _Entry(text, f"env {name}", is_text=True)
        elif name.startswith(ours) or (name.startswith("OMLX_") and "__" in name):
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.5)
            raise ConfigError(
                f"unknown setting {name} in the environment",
                hint=f"did you mean {near[0]}?" if near else _SEE_ALL,
            )
    return entries


def _env_name(dotted: str) -> str:
    return f"OMLX_{dotted.upper().replace('.', '__')}"


def _from_flags(overrides: Mapping[str, str]) -> dict[str, _Entry]:
    for dotted in overrides:
        if dotted not in _FIELDS:
            raise _unknown(dotted, "flag")
    return {key: _Entry(text, "flag", is_text=True) for key, text in overrides.items()}


_SEE_ALL = "`omlx-server config show` lists every key"


def _unknown(name: str, origin: str) -> ConfigError:
    near = nearest(name)
    noun = "key" if "." in name else "section or key"
    hint = f"did you mean {near}?" if near else _SEE_ALL
    return ConfigError(f"unknown {noun} {name} ({origin})", hint=hint)


def nearest(name: str) -> str | None:
    """The valid section or key that `name` most likely stands for."""
    known = (*Settings.model_fields, *KEYS)
    last = name.rpartition(".")[2]
    same_key = [key for key in KEYS if key.endswith(f".{last}")]
    if same_key:
        return difflib.get_close_matches(name, same_key, n=1, cutoff=0)[0]
    close = difflib.get_close_matches(name, known, n=1)
    by_last = {key.rpartition(".")[2]: key for key in KEYS}
    close_last = difflib.get_close_matches(last, by_last, n=1)
    return close[0] if close else by_last[close_last[0]] if close_last else None


# --- One value -----------------------------------------------------------------------------------


def _checked(dotted: str, entry: _Entry) -> object:
    field = _FIELDS[dotted]
    value = _typed(str(entry.value), field.default) if entry.is_text else entry.value
    try:
        return _adapter(field).validate_python(value, strict=True)
    except ValidationError:
        got = "" if dotted.startswith("auth.") else f", not {_shown(entry.value)}"
        raise ConfigError(f"{dotted}: expected {expected(dotted)}{got} ({entry.origin})") from None


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]


def _typed(text: str, default: object) -> object:
    """`text` as the type of the key's default; or as it is, for the validator to refuse."""
    stripped = text.strip()
    if isinstance(default, bool):
        return _BOOLS.get(stripped.lower(), text)
    if isinstance(default, int | float):
        return _number(stripped)
    if isinstance(default, tuple):
        return _list(stripped)
    return text


def _number(text: str) -> object:
    if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?\d{1,18}\.\d{1,18}", text, re.ASCII) else text


def _list(text: str) -> object:
    """A JSON array, or items between commas."""
    if not text.startswith("["):
        return [item.strip() for item in text.split(",")] if text else []
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected(dotted: str) -> str:
    """What a key takes, in words. Made from the field itself, so that it can't drift from it."""
    field = _FIELDS[dotted]
    for mark in field.metadata:
        if isinstance(mark, _Says):
            return str(mark)
    schema = _adapter(field).json_schema()
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if is_size(dotted):
        low, high = format_size(schema["minimum"]), format_size(schema["maximum"])
        return f'bytes or a size like "8MiB", from {low} to {high}'
    words = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    return words.get(schema["type"], "a text") + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    bounds = f" from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else ""
    return bounds + (f" in steps of {schema['multipleOf']}" if "multipleOf" in schema else "")


def is_size(dotted: str) -> bool:
    return any(isinstance(mark, IsSize) for mark in _FIELDS[dotted].metadata)
