"""Warnings about settings that are valid, but hardly what the user means."""

from collections.abc import Collection, Iterator
from pathlib import Path

from omlx_server.settings.layers import Loaded, search_path
from omlx_server.settings.model_sections import ModelsSettings, SpeculationSettings
from omlx_server.settings.overrides import explicit_values
from omlx_server.settings.sections import Settings
from omlx_server.settings.values import SECRETS, value_of
from omlx_server.settings.whole_file import OTHERS


def warnings(loaded: Loaded) -> list[str]:
    """Return a line for each setting without effect, contradiction, readable secret, and ignored
    file."""
    settings = loaded.settings
    lines = [*_without_effect(loaded), *_contradictions(settings)]
    return [*lines, *_readable_secrets(loaded), *_unused_file(loaded)]


def sources_in_words(loaded: Loaded) -> str:
    """Name the config file, and what wins over it: flags and variables of the environment."""
    flags = [key for key, origin in loaded.origins.items() if origin == "flag"]
    variables = [origin[4:] for origin in loaded.origins.values() if origin.startswith("env ")]
    words = [f"config file {loaded.source.absolute()}" if loaded.source else "no config file"]
    for kind, names in (("flags", flags), ("environment", variables)):
        if names:
            words.append(f"{kind}: {', '.join(names)}")
    return "; ".join([*words, "defaults for all else"])


def unknown_models(models: ModelsSettings, known: Collection[str]) -> Iterator[str]:
    """Yield a line for each model in the settings that is not one of the `known` names."""
    for alias in models.aliases:
        if (target := models.resolve_alias(alias)) not in known:
            yield f"models.aliases: {alias} stands for {target}, which is not here"
    for key, names in (("overrides", models.overrides), ("pinned", models.pinned)):
        for name in names:
            if name not in known and name not in models.aliases:
                yield f"models.{key}: {name} is not here"


def _without_effect(loaded: Loaded) -> Iterator[str]:
    settings = loaded.settings
    # A condition, its words, and the beginnings of the keys that then have no effect.
    cases = (
        (settings.cache.hot_cache_only, "cache.hot_cache_only is on", ("cache.cold_",)),
        (settings.server.uds, "server.uds is set", ("server.host", "server.port")),
        (not settings.metrics.enabled, "metrics.enabled is off", ("metrics.compat",)),
        (not settings.admin.enabled, "admin.enabled is off", ("auth.admin",)),
        (
            settings.speculation.mode not in ("auto", "draft"),
            f"speculation.mode is {settings.speculation.mode}",
            ("speculation.draft_model",),
        ),
    )
    for applies, reason, keys in cases:
        without_effect = [
            key
            for key, origin in loaded.origins.items()
            if applies and key.startswith(keys) and origin != "default"
        ]
        if without_effect:
            yield f"{reason}, so this has no effect: {', '.join(without_effect)}"


def _contradictions(settings: Settings) -> Iterator[str]:
    models = settings.models
    if not (settings.admin.enabled or models.autoload):
        yield "models.autoload and admin.enabled are both off: no model is loaded after the start"
    for key, speculation in _speculation_tables(settings):
        if speculation.mode == "draft" and not speculation.draft_model:
            yield f"{key}.mode is draft, but there is no {key}.draft_model"
    for alias, target in models.aliases.items():
        if target in models.aliases:
            final = models.resolve_alias(alias)
            yield f"models.aliases: {target} is itself an alias, so {alias} stands for {final}"


def _speculation_tables(settings: Settings) -> Iterator[tuple[str, SpeculationSettings]]:
    yield "speculation", settings.speculation
    for name, overrides in settings.models.overrides.items():
        if explicit_values(overrides.speculation):
            yield f"models.overrides.{name}.speculation", settings.speculation_of([name])


def _unused_file(loaded: Loaded) -> Iterator[str]:
    here = Path("omlx.toml")
    if loaded.source in (None, *search_path()) and here.is_file():
        yield f"{here.absolute()} is not used: --config {here} or OMLX_CONFIG={here} would take it"


def _readable_secrets(loaded: Loaded) -> Iterator[str]:
    if loaded.source is None:
        return
    keys = [
        key
        for key in SECRETS
        if loaded.origins[key].startswith("file ") and value_of(loaded.settings, key)
    ]
    if keys and loaded.source.stat().st_mode & OTHERS:
        yield f"{loaded.source} holds {' and '.join(keys)} and others may read it: chmod 600"
