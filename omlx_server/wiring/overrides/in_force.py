"""Defaults for a model's requests, and their origins. Pure.

From strongest to weakest: a preset that the request names, the model's overrides, its makers'
recommendation (generation_config.json), the section `sampling`, the API's own default.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omlx_server.core.request import RequestDefaults
from omlx_server.settings.overrides import ModelOverrides, PromptOverride, said
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
    own: ModelOverrides,
    settings: Settings,
    preset: str | None = None,
) -> dict[str, InForce]:
    """Return a value for each field of `RequestDefaults`. Raises KeyError for an unknown
    `preset`."""
    plain, most = RequestDefaults(), settings.sampling.max_tokens
    found = {name: InForce(getattr(plain, name), DEFAULT) for name in _FIELDS}
    if most:
        found["max_tokens"] = InForce(most, "sampling.max_tokens")
    if settings.sampling.source == "model":
        found |= _from(recommended, MAKERS)
    prompt = {name: getattr(own, name) for name in PromptOverride.__struct_fields__}
    found |= _from({**prompt, **said(own.sampling)}, OVERRIDE)
    if preset is not None:
        found |= _from(said(own.presets[preset]), f"preset {preset}")
    return found


def request_defaults(
    recommended: Mapping[str, float],
    own: ModelOverrides,
    settings: Settings,
    preset: str | None = None,
) -> RequestDefaults:
    """Return the defaults for requests. Raises as `values_in_force`."""
    values = values_in_force(recommended, own, settings, preset)
    found: dict[str, Any] = {name: one.value for name, one in values.items()}
    return RequestDefaults(**found)


def _from(values: Mapping[str, object], origin: str) -> dict[str, InForce]:
    return {name: InForce(value, origin) for name, value in values.items() if value is not None}
