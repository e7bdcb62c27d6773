"""Versions that must be the same on all ranks."""

from importlib.metadata import version

from omlx_server import __version__


def versions() -> tuple[tuple[str, str], ...]:
    return (("omlx_server", __version__), ("mlx", version("mlx")), ("mlx-lm", version("mlx-lm")))


def difference(own: tuple[tuple[str, str], ...], other: object) -> str:
    """Return the differing versions in words, or ""."""
    if not isinstance(other, tuple | list):
        return "its versions are unknown"
    theirs = dict(other)
    differing = [(name, here, theirs.get(name)) for name, here in own if theirs.get(name) != here]
    return ", ".join(f"{name} {there} and not {here}" for name, here, there in differing)
