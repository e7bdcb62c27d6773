"""Byte sizes as settings are shown with them. Pure; what is read back is `types.parse_size`."""

_TENS = {"TB": 10**12, "GB": 10**9, "MB": 10**6}
_TWOS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def format_size(size: int) -> str:
    """Exactly, and as people write it: 50GB and 8MiB have no unit in common."""
    for name, unit in (_TENS | _TWOS).items():
        count, rest = divmod(size, unit)
        if count and not rest:
            return f"{count}{name}"
    return f"{size}B"
