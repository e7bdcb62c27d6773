"""Defaults for a model's requests, and their origins. Pure.

The strongest first: a preset of the request, the model's overrides, its makers'
generation_config.json, the section `sampling`, the API's default.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.core.request import RequestDefaults
from omlx_server.settings.overrides import ModelOverrides, PromptOverride, explicit_values
from omlx_server.settings.sections import Settings

MAKERS = "generation_config.json"
OVERRIDE = "override"
DEFAULT = "default"
_FIELDS = tuple(field.name for field in dataclasses.fields(RequestDefaults))


@dataclass(frozen=True, slots=True)
class InForce:
    """A value and its origin: "preset NAME", OVERRIDE, MAKERS, a key of the settings, or
    DEFAULT."""

    value: object
    origin: str


def values_in_force(
    recommended: Mapping[str, float],
    overrides: ModelOverrides,
    settings: Settings,
    preset: str | None = None,
) -> dict[str, InForce]:
    """Return a value for each field of `RequestDefaults`. Raises KeyError."""
    plain, most = RequestDefaults(), settings.sampling.max_tokens
    values = {name: InForce(getattr(plain, name), DEFAULT) for name in _FIELDS}
    if most:
        values["max_tokens"] = InForce(most, "sampling.max_tokens")
    if settings.sampling.source == "model":
        values |= _from(recommended, MAKERS)
    prompt = {name: getattr(overrides, name) for name in PromptOverride.__struct_fields__}
    values |= _from({**prompt, **explicit_values(overrides.sampling)}, OVERRIDE)
    if preset is not None:
        values |= _from(explicit_values(overrides.presets[preset]), f"preset {preset}")
    return values


def request_defaults(
    recommended: Mapping[str, float],
    overrides: ModelOverrides,
    settings: Settings,
    preset: str | None = None,
) -> RequestDefaults:
    """Return the defaults for requests. Raises as `values_in_force`."""
    values = values_in_force(recommended, overrides, settings, preset)
    fields: dict[str, Any] = {name: one.value for name, one in values.items()}
    return RequestDefaults(**fields)


def _from(values: Mapping[str, object], origin: str) -> dict[str, InForce]:
    return {name: InForce(value, origin) for name, value in values.items() if value is not None}
