"""Writes byte sizes as texts; `types.parse_size` reads them. Pure."""

_TENS = {"TB": 10**12, "GB": 10**9, "MB": 10**6}
_TWOS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def format_size(size: int) -> str:
    """`size` in bytes as an exact text, with the first unit that divides it: TB, GB, MB, then TiB,
    GiB, MiB, KiB, else B. So both 50GB and 8MiB show as people write them."""
    for name, unit in (_TENS | _TWOS).items():
        count, rest = divmod(size, unit)
        if count and not rest:
            return f"{count}{name}"
    return f"{size}B"
