"""What a user is told of the extras: packages that `pyproject.toml` names and that are installed
only where somebody wants them. Pure."""


def how_to_install(extra: str) -> str:
    """How a user gets an extra. There is no release on PyPI, so it is installed from the clone."""
    return f"uv tool install '.[{extra}]', in the clone; for pip and pipx see docs/install.md"
