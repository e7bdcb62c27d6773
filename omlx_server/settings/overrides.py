"""Overrides of single models: the tables in models.overrides. A key that is None is not set."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Meta, defstruct, field
from msgspec.structs import replace

from omlx_server.core.adapters import is_path
from omlx_server.core.request import Effort, NumberRange, SamplingPresets
from omlx_server.core.speculation.methods import Mode
from omlx_server.settings.fields import Section
from omlx_server.settings.types import (
    AdapterName,
    Bits,
    GroupSize,
    IdleSeconds,
    MaxTokens,
    Penalty,
    Scheme,
    Seed,
    Stops,
    TemplateFile,
    Wording,
    expanded,
)

_BY_FLAG = ("kv_cache", "speculation")
"""The tables whose sections have flags that count for every model."""


class KvCacheOverride(Section, frozen=True):
    """A model's values for the section `kv_cache`."""

    scheme: Scheme | None = None
    bits: Bits | None = None
    group_size: GroupSize | None = None


class SpeculationOverride(Section, frozen=True):
    """A model's values for the section `speculation`. An empty `draft_model` is none."""

    mode: Mode | None = None
    draft_model: str | None = None


def _preset(kind: type[float], bounds: NumberRange) -> Any:
    low, high = bounds.low, bounds.high
    return Annotated[kind, Meta(gt=low, le=high) if bounds.above_low else Meta(ge=low, le=high)]


_PRESETS = get_type_hints(SamplingPresets, include_extras=True)
_SAMPLING = [
    *((name, _preset(*get_args(hint)) | None, None) for name, hint in _PRESETS.items()),
    ("max_tokens", MaxTokens | None, None),
    ("presence_penalty", Penalty | None, None),
    ("frequency_penalty", Penalty | None, None),
    ("seed", Seed | None, None),
    ("stop", Stops, None),
]


def _with_sampling(name: str, base: type[Section], doc: str) -> Any:
    namespace = {"__doc__": doc}
    return defstruct(name, _SAMPLING, bases=(base,), namespace=namespace, frozen=True, kw_only=True)


SamplingOverride: Any = _with_sampling(
    "SamplingOverride", Section, "Defaults for fields that a request leaves out."
)


class PromptOverride(Section, frozen=True):
    """Defaults for a conversation without a system message (`system`), and for a request that does
    not say how much the model is to think."""

    system: str | None = None
    reasoning_effort: Effort | None = None
    thinking_budget: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None


PresetOverride: Any = _with_sampling(
    "PresetOverride",
    PromptOverride,
    "Defaults for fields that a request with this preset leaves out.",
)


class ModelOverrides(PromptOverride, frozen=True):
    """Overrides of one model. `ttl` is its `models.idle_ttl_seconds`; an empty parser is the one
    that its template asks for, an empty `chat_template` the model's own. `adapter` is for requests
    that name none."""

    context_length: Annotated[int, Meta(ge=16, le=100_000_000)] | None = None
    ttl: IdleSeconds | None = None
    pin: bool | None = None
    adapter: AdapterName | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    sampling: SamplingOverride = field(default_factory=SamplingOverride)
    chat_template: TemplateFile = None
    chat_template_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    presets: Annotated[
        dict[str, PresetOverride],
        Wording('tables by preset name, as {"coder" = {temperature = 0.2}}'),
    ] = field(default_factory=dict)
    kv_cache: KvCacheOverride = field(default_factory=KvCacheOverride)
    speculation: SpeculationOverride = field(default_factory=SpeculationOverride)


def explicit_values(table: Section) -> dict[str, Any]:
    """Return the keys that are set in a table, and in its tables."""
    values = {name: _explicit(value) for name, value in table}
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _explicit(value: object) -> object:
    if isinstance(value, dict):
        return {name: _explicit(inner) for name, inner in value.items()}
    return explicit_values(value) if isinstance(value, Section) else value


def context_of(overrides: ModelOverrides, trained: int) -> int:
    """Return the context in tokens: the override, but at most `trained`."""
    return min(trained, overrides.context_length or trained)


def without(overrides: ModelOverrides, keys: Collection[str]) -> ModelOverrides:
    """Return `overrides` without those `keys` ("section.key") of `kv_cache` and `speculation`."""
    tables = {
        name: replace(table, **{key: None for key, _ in table if f"{name}.{key}" in keys})
        for name, table in overrides
        if name in _BY_FLAG
    }
    return replace(overrides, **tables)


def merged(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Merge two mappings, tables key by key; values of `other` win."""
    both = {**one, **other}
    for key, value in other.items():
        mine = one.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            both[key] = merged(mine, value)
    return both


def with_paths_from(tables: object, directory: Path) -> object:
    """Make the paths in `tables` absolute, from the config file's `directory`."""
    if not isinstance(tables, Mapping):
        return tables
    return {name: _with_paths(table, directory) for name, table in tables.items()}


def _with_paths(table: object, directory: Path) -> object:
    if not isinstance(table, Mapping):
        return table
    kinds = {"chat_template": path_from, "adapter": adapter_from}
    paths = {key: kinds[key](table[key], directory) for key in kinds if key in table}
    return {**table, **paths}


def path_from(value: object, directory: Path) -> object:
    """Return a config file's path as an absolute one; other values unchanged."""
    is_text = isinstance(value, str) and value
    return str(directory.absolute() / expanded(str(value))) if is_text else value


def adapter_from(value: object, directory: Path) -> object:
    is_a_path = isinstance(value, str) and is_path(value)
    return path_from(value, directory) if is_a_path else value


OVERRIDES: tuple[type[Section], ...] = (
    ModelOverrides,
    SamplingOverride,
    PresetOverride,
    KvCacheOverride,
    SpeculationOverride,
)
