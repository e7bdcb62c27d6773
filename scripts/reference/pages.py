"""Which pages there are, and what makes each. No dates, no paths of this machine, a fixed order."""

from scripts.reference import cli, config, http, metrics
from scripts.reference.served import Served


def pages(served: Served) -> dict[str, str]:
    """Texts by file name."""
    return {
        "cli.md": cli.page(),
        "config.md": config.page(),
        "http.md": http.page(served.document),
        "metrics.md": metrics.page(served.metrics),
    }
