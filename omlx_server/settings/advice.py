"""What is allowed and yet hardly meant. Pure but for the mode of the file."""

from collections.abc import Iterator

from omlx_server.settings.layers import Loaded

_OTHERS = 0o077


def warnings(loaded: Loaded) -> list[str]:
    """One line each."""
    return [*_without_effect(loaded), *_readable_secrets(loaded)]


def _without_effect(loaded: Loaded) -> Iterator[str]:
    """Without a cold tier, what was set for it means nothing."""
    if not loaded.settings.cache.hot_cache_only:
        return
    idle = [
        key
        for key, origin in loaded.origins.items()
        if key.startswith("cache.cold_") and origin != "default"
    ]
    if idle:
        yield f"cache.hot_cache_only is on, so this has no effect: {', '.join(idle)}"


def _readable_secrets(loaded: Loaded) -> Iterator[str]:
    if loaded.source is None:
        return
    held = [
        key for key in ("auth.api_keys", "cache.remote") if loaded.origins[key].startswith("file ")
    ]
    if held and loaded.source.stat().st_mode & _OTHERS:
        yield f"{loaded.source} holds {' and '.join(held)} and others may read it: chmod 600"
