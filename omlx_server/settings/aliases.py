"""Aliases: names that users give to models in models.aliases."""

from collections.abc import Mapping

from omlx_server.errors import ConfigError


def resolve(aliases: Mapping[str, str], name: str) -> str:
    """Follow the aliases from `name` until a name is no alias; a `name` that is none is returned.

    Raises:
        ConfigError: the aliases form a cycle.
    """
    seen = [name]
    while (name := aliases.get(seen[-1], "")) not in ("", *seen):
        seen.append(name)
    if name:
        ring = " -> ".join([*seen, name])
        raise ConfigError(
            f"models.aliases lead round in a ring: {ring}",
            hint="one of them must stand for a model",
        )
    return seen[-1]
