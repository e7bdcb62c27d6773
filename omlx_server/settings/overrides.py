"""Overrides of single models: the tables in models.overrides. A key that is None is not set."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from msgspec import Meta, defstruct, field
from msgspec.structs import replace

from omlx_server.core.adapters import is_path
from omlx_server.core.experts.budget import ExpertsSetting
from omlx_server.core.request import Effort, NumberRange, SamplingPresets
from omlx_server.core.speculation.methods import Mode
from omlx_server.settings import types
from omlx_server.settings.fields import Section

_TABLES_WITH_FLAGS = ("kv_cache", "speculation")
"""The tables whose sections have flags, which count for every model."""


class KvCacheOverride(Section, frozen=True):
    """A model's values for the section `kv_cache`."""

    scheme: types.Scheme | None = None
    bits: types.Bits | None = None
    group_size: types.GroupSize | None = None


class SpeculationOverride(Section, frozen=True):
    """A model's values for the section `speculation`. An empty `draft_model` is none."""

    mode: Mode | None = None
    draft_model: str | None = None


def _bounded(kind: type[float], bounds: NumberRange) -> Any:
    low, high = bounds.low, bounds.high
    return Annotated[kind, Meta(gt=low, le=high) if bounds.above_low else Meta(ge=low, le=high)]


_PRESET_TYPES = get_type_hints(SamplingPresets, include_extras=True)
# Name, type and default of each field.
_SAMPLING = [
    *((name, _bounded(*get_args(hint)) | None, None) for name, hint in _PRESET_TYPES.items()),
    ("max_tokens", types.MaxTokens | None, None),
    ("presence_penalty", types.Penalty | None, None),
    ("frequency_penalty", types.Penalty | None, None),
    ("seed", types.Seed | None, None),
    ("stop", types.Stops, None),
]


def _with_sampling(name: str, base: type[Section], doc: str) -> Any:
    """Make a section that has the fields of `base` and those of sampling."""
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
    that its template asks for, an empty `chat_template` is the model's own. `adapter` is for
    requests that name none."""

    context_length: Annotated[int, Meta(ge=16, le=100_000_000)] | None = None
    ttl: types.IdleSeconds | None = None
    pin: bool | None = None
    adapter: types.AdapterName | None = None
    experts: ExpertsSetting | None = None
    experts_memory: types.MaybeSize = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    sampling: SamplingOverride = field(default_factory=SamplingOverride)
    chat_template: types.TemplateFile = None
    chat_template_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    presets: Annotated[
        dict[str, PresetOverride],
        types.Wording('tables by preset name, as {"coder" = {temperature = 0.2}}'),
    ] = field(default_factory=dict)
    kv_cache: KvCacheOverride = field(default_factory=KvCacheOverride)
    speculation: SpeculationOverride = field(default_factory=SpeculationOverride)


def explicit_values(table: Section) -> dict[str, Any]:
    """Return the keys that are set in a table, and in its tables."""
    values = {name: _without_unset(value) for name, value in table}
    return {name: value for name, value in values.items() if value not in (None, {})}


def _without_unset(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_unset(inner) for name, inner in value.items()}
    return explicit_values(value) if isinstance(value, Section) else value


def context_of(overrides: ModelOverrides, trained: int) -> int:
    """Return the context in tokens: the override, but at most `trained`."""
    return min(trained, overrides.context_length or trained)


def without(overrides: ModelOverrides, keys: Collection[str]) -> ModelOverrides:
    """Return `overrides` without those `keys` ("section.key") of `kv_cache` and `speculation`."""
    tables = {
        name: replace(table, **{key: None for key, _ in table if f"{name}.{key}" in keys})
        for name, table in overrides
        if name in _TABLES_WITH_FLAGS
    }
    return replace(overrides, **tables)


def merged(weaker: Mapping[str, object], stronger: Mapping[str, object]) -> dict[str, object]:
    """Merge two mappings, tables key by key; values of `stronger` win."""
    result = {**weaker, **stronger}
    for key, value in stronger.items():
        table = weaker.get(key)
        if isinstance(table, Mapping) and isinstance(value, Mapping):
            result[key] = merged(table, value)
    return result


def with_paths_from(tables: object, directory: Path) -> object:
    """Make the paths in `tables` absolute, from the config file's `directory`."""
    if not isinstance(tables, Mapping):
        return tables
    return {name: _with_paths(table, directory) for name, table in tables.items()}


def _with_paths(table: object, directory: Path) -> object:
    if not isinstance(table, Mapping):
        return table
    functions = {"chat_template": path_from, "adapter": adapter_from}
    paths = {key: functions[key](table[key], directory) for key in functions if key in table}
    return {**table, **paths}


def path_from(value: object, directory: Path) -> object:
    """Return a config file's path as an absolute one; other values unchanged."""
    is_text = isinstance(value, str) and value
    return str(directory.absolute() / types.expanded(str(value))) if is_text else value


def adapter_from(value: object, directory: Path) -> object:
    """Return an adapter's path as `path_from`; its name unchanged."""
    return path_from(value, directory) if isinstance(value, str) and is_path(value) else value


OVERRIDES: tuple[type[Section], ...] = (
    ModelOverrides,
    SamplingOverride,
    PresetOverride,
    KvCacheOverride,
    SpeculationOverride,
)
