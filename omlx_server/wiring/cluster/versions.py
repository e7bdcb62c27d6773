"""What must be the same on all ranks."""

from importlib.metadata import version

from omlx_server import __version__


def versions() -> tuple[tuple[str, str], ...]:
    """The names and versions of this program and of what computes for it."""
    return (("omlx_server", __version__), ("mlx", version("mlx")), ("mlx-lm", version("mlx-lm")))


def difference(own: tuple[tuple[str, str], ...], other: object) -> str:
    """Which versions differ, in words; empty where none does."""
    if not isinstance(other, tuple | list):
        return "its versions are unknown"
    theirs = dict(other)
    differing = [(name, here, theirs.get(name)) for name, here in own if theirs.get(name) != here]
    return ", ".join(f"{name} {there} and not {here}" for name, here, there in differing)
