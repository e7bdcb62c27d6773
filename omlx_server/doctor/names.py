"""What the config calls models."""

from collections.abc import Collection, Iterator

from omlx_server.settings.sections import Models


def strangers(models: Models, known: Collection[str]) -> Iterator[str]:
    """What is said of models that are not among the `known` names: one line each."""
    for alias in models.aliases:
        if (meant := models.meant(alias)) not in known:
            yield f"models.aliases: {alias} stands for {meant}, which is not here"
    for key, names in (("overrides", models.overrides), ("pinned", models.pinned)):
        for name in names:
            if name not in known and name not in models.aliases:
                yield f"models.{key}: {name} is not here"
