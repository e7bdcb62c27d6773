"""The Host header, and what else names a host and a port."""


def host_of(authority: str) -> str:
    """The name in `name:port`, `[v6]:port` or either without a port; lower case."""
    authority = authority.lower()
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]
