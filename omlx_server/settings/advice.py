"""What is allowed and yet hardly meant. Pure but for the mode of the file."""

from collections.abc import Iterator

from omlx_server.settings.layers import Loaded
from omlx_server.settings.sections import Settings
from omlx_server.settings.values import SECRETS, value_of

_OTHERS = 0o077


def warnings(loaded: Loaded) -> list[str]:
    """One line each."""
    found = [*_without_effect(loaded), *_contradictions(loaded.settings)]
    return [*found, *_readable_secrets(loaded)]


def _without_effect(loaded: Loaded) -> Iterator[str]:
    """What was set and means nothing beside something else."""
    settings = loaded.settings
    cases = (
        (settings.cache.hot_cache_only, "cache.hot_cache_only is on", ("cache.cold_",)),
        (settings.server.uds, "server.uds is set", ("server.host", "server.port")),
        (not settings.metrics.enabled, "metrics.enabled is off", ("metrics.compat",)),
        (not settings.admin.enabled, "admin.enabled is off", ("auth.admin",)),
    )
    for applies, reason, keys in cases:
        idle = [
            key
            for key, origin in loaded.origins.items()
            if applies and key.startswith(keys) and origin != "default"
        ]
        if idle:
            yield f"{reason}, so this has no effect: {', '.join(idle)}"


def _contradictions(settings: Settings) -> Iterator[str]:
    models = settings.models
    if not (settings.admin.enabled or models.autoload):
        yield "models.autoload and admin.enabled are both off: no model is loaded after the start"
    for alias, target in models.aliases.items():
        if target in models.aliases:
            meant = models.meant(alias)
            yield f"models.aliases: {target} is itself an alias, so {alias} stands for {meant}"


def _readable_secrets(loaded: Loaded) -> Iterator[str]:
    if loaded.source is None:
        return
    held = [
        key
        for key in SECRETS
        if loaded.origins[key].startswith("file ") and value_of(loaded.settings, key)
    ]
    if held and loaded.source.stat().st_mode & _OTHERS:
        yield f"{loaded.source} holds {' and '.join(held)} and others may read it: chmod 600"
