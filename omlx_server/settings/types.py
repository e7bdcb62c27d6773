"""The types of settings: how texts of values are read and written, and what is allowed."""

import ipaddress
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from omlx_server.errors import ConfigError, PlaceUnusable

_PARSED_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_WRITTEN_UNITS = {"TB": 10**12, "GB": 10**9, "MB": 10**6}
_WRITTEN_UNITS |= {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
# Without a unit, a smaller number is hardly meant as bytes.
LEAST_WITHOUT_UNIT = 10**6
SIZE_PATTERN = r"^\s*(0+|[1-9]\d{6,14}|\d{1,15}(\.\d{1,15})?\s*([kKmMgGtT][iI]?)?[bB])\s*$"
"""The texts of sizes, as a pattern of JSON schema."""
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)

_PROGRAM = "omlx_server"
OWN_MODELS = "~/.cache/omlx_server/models"
_XDG_BASES = {
    "~/.config/": "XDG_CONFIG_HOME",
    "~/.cache/": "XDG_CACHE_HOME",
    "~/.local/state/": "XDG_STATE_HOME",
}
"""Directories of the XDG base directory specification, and the variables that move them."""
XDG_VARIABLES = tuple(_XDG_BASES.values())


def parse_size(value: object) -> object:
    """Return the bytes of a text such as "8MiB"; any other value unchanged."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _PARSED_UNITS:
        return value
    return int(float(match[1]) * _PARSED_UNITS[match[2].lower()])


def number_without_unit(value: object) -> int | float | None:
    """Return a size's number if it lacks a unit that it needs: above 0, and below a megabyte."""
    number = parse_number(value.strip()) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return number if 0 < number < LEAST_WITHOUT_UNIT else None


def format_size(size: int) -> str:
    """Write a size exactly, with the first unit that divides it: TB, GB, MB, then TiB to KiB,
    else B."""
    for name, unit in _WRITTEN_UNITS.items():
        count, remainder = divmod(size, unit)
        if count and not remainder:
            return f"{count}{name}"
    return f"{size}B"


def expanded(value: str | Path) -> Path:
    """Replace ~ and ~user. Raises ConfigError or PlaceUnusable without such a home directory."""
    try:
        return Path(value).expanduser()
    except RuntimeError:
        # Another user's home is a typo; a missing home of our own is a fault of the machine.
        is_own = str(value).startswith("~/") or str(value) == "~"
        raise (PlaceUnusable if is_own else ConfigError)(
            f"{value}: there is no such home directory", hint="set HOME, or write the whole path"
        ) from None


def own_place(written: str, home: Path | None = None) -> Path:
    """Return the path of this program's file, `written` as ~/.cache/omlx_server/kv: in the XDG
    directory if that is set and our directory is not in home yet. Raises PlaceUnusable without a
    home directory."""
    for start, variable in _XDG_BASES.items():
        base = os.environ.get(variable, "")
        is_set = written.startswith(start) and Path(base).is_absolute()
        if is_set and not _exists(f"{start}{_PROGRAM}", home):
            return Path(base) / written.removeprefix(start)
    return _at_home(written, home)


def _exists(written: str, home: Path | None) -> bool:
    try:
        return _at_home(written, home).exists()
    except (ConfigError, OSError):
        return False


def _at_home(written: str, home: Path | None) -> Path:
    return expanded(written) if home is None else home / written.removeprefix("~/")


def parse_path(text: str) -> Path:
    """Raises ValueError if no file can have this name, else as `expanded`."""
    if not text or "\0" in text:
        raise ValueError("no file has such a name")
    return expanded(text)


def _path(value: object) -> object:
    return str(parse_path(value)) if isinstance(value, str) and value else value


def own_models() -> Path | None:
    """Return this program's directory of models; None without a home directory."""
    with suppress(PlaceUnusable):
        return own_place(OWN_MODELS)
    return None


def with_own_models(value: object) -> object:
    """Append `own_models` to a list of directories that lacks it."""
    paths = value if isinstance(value, list | tuple) else ()
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        return value
    own = own_models()
    is_there = own is None or own in map(expanded, paths)
    return value if is_there else [*paths, own]


class Secret:
    """A secret text: `str` and `repr` show stars."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __str__(self) -> str:
        return "*" * 10 if self._value else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class Key(Secret):
    """An API key of visible ASCII characters. Raises ValueError."""

    __slots__ = ()

    def __init__(self, value: str) -> None:
        if not re.fullmatch(r"[!-~]+", value):
            raise ValueError("not of visible ASCII characters alone")
        super().__init__(value)


@dataclass(frozen=True, slots=True)
class AtHome:
    """A default path, or several, below home, which is looked up when settings are made."""

    written: str | tuple[str, ...]

    def __call__(self) -> Any:
        if isinstance(self.written, str):
            return own_place(self.written)
        return tuple(map(own_place, self.written))


@dataclass(frozen=True, slots=True)
class Conversion:
    """A mark: values go through `read` before they are checked."""

    read: Callable[[object], object]


@dataclass(frozen=True, slots=True)
class ByteSize(Conversion):
    """A mark: the key is a size in bytes, which texts may give with a unit."""

    read: Callable[[object], object] = parse_size


class Live(str):
    """A mark: the key can change while the server runs; the words say how far."""

    def __new__(cls, words: str = "applies while the server runs") -> "Live":
        return super().__new__(cls, words)


class Wording(str):
    """A mark: the words that say which values the key may have."""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


Host = Annotated[
    str, Meta(pattern=r"\A[A-Za-z0-9._:%-]+\Z"), Wording("a host name or an IP address")
]
HostName = Annotated[str, Meta(pattern=r"\A(\*|[A-Za-z0-9._:-]+)\Z")]
Origin = Annotated[str, Meta(pattern=r"\A(\*|https?://[A-Za-z0-9._:\[\]-]+)\Z")]
Directory = Annotated[Path, Wording("the path of a directory")]
UNIX = "unix:"
"""The prefix of a Unix socket's path, in places that otherwise take a URL."""
SocketPath = Annotated[str, Conversion(_path), Wording('the path of a socket, or "" for none')]
AdapterName = Annotated[str, Wording('the name or the path of an adapter, or "" for none')]
MaybeDirectory = Annotated[
    str, Conversion(_path), Wording('the path of a directory, or "" for none')
]
ModelName = Annotated[str, Wording('the name or the path of a model, or "" for none')]
HostsFile = Annotated[str, Conversion(_path), Wording('the path of a hosts file, or "" for none')]
ProgramName = Annotated[
    str, Meta(pattern=r"^[\w./~-]+$"), Wording("the name or the path of a program, without options")
]
LogFile = Annotated[str, Conversion(_path), Wording('a path, or "" for stderr')]
TemplateFile = Annotated[
    str | None,
    Conversion(_path),
    Wording('the path of a .jinja file, or "" for the model\'s own'),
]


def parse_number(text: str) -> object:
    """Return an int or a float; the text itself if it is neither."""
    if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        return int(text)
    return float(text) if re.fullmatch(r"[+-]?\d{1,18}\.\d{1,18}", text, re.ASCII) else text


def _number_or_auto(value: object) -> object:
    return parse_number(value.strip()) if isinstance(value, str) else value


AutoSize = Annotated[
    Literal["auto"] | Annotated[int, Meta(ge=0, le=2**50)],
    ByteSize(),
    Wording('"auto", or a size with its unit, like "8GiB"'),
]

AutoLimit = Annotated[
    Literal["auto"] | Annotated[int, Meta(ge=1, le=2**50)],
    ByteSize(),
    Wording('"auto", or a size above 0 with its unit, like "8GiB"'),
]

WiredSize = Annotated[
    Literal["off", "auto"] | Annotated[int, Meta(ge=1, le=2**50)],
    ByteSize(),
    Wording('"off", "auto", or a size above 0 with its unit, like "8GiB"'),
]

Size = Annotated[int, Meta(ge=0, le=2**50), ByteSize()]
MaybeSize = Annotated[
    Annotated[int, Meta(ge=0, le=2**50)] | None,
    ByteSize(),
    Wording('a size with its unit, like "8GiB"'),
]
AutoChunk = Annotated[
    Literal["auto"] | Annotated[int, Meta(ge=64, le=8192, multiple_of=64)],
    Conversion(_number_or_auto),
    Wording('"auto", or an integer from 64 to 8192 in steps of 64'),
]
AutoSeconds = Annotated[
    Literal["auto"] | Annotated[float, Meta(ge=0, le=60)],
    Conversion(_number_or_auto),
    Wording('"auto", or seconds from 0 (no limit) to 60'),
]

Scheme = Literal["none", "affine", "rotated", "turboquant"]
Bits = Annotated[float, Meta(ge=2, le=8)]
GroupSize = Annotated[Literal[32, 64, 128], Wording("32, 64 or 128")]
IdleSeconds = Annotated[float, Meta(ge=0, le=10 * 365 * 86400)]
MaxTokens = Annotated[int, Meta(ge=0, le=10_000_000)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
StopText = Annotated[str, Meta(min_length=1, max_length=1000)]
Stops = Annotated[
    Annotated[tuple[StopText, ...], Meta(max_length=32)] | None,
    Wording("a list of at most 32 texts"),
]
