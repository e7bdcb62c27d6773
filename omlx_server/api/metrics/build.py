"""Metrics of the server's versions, and of its loaded models."""

import platform
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client.core import Metric

from omlx_server import __version__
from omlx_server.api.metric_helpers import MODEL, OWN, gauges, label_of
from omlx_server.api.models.served_model import Served, role_of


def build_info() -> Metric:
    versions = (__version__, platform.python_version(), version("mlx"), version("mlx-lm"))
    return gauges(
        f"{OWN}build_info",
        "Always 1; its labels are the versions of the server, of Python, of MLX and of mlx-lm.",
        ("version", "python", "mlx", "mlx_lm"),
        {versions: 1},
    )


class LoadedModels:
    """Remembers loaded models, to report 0 for one that leaves."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}

    def family(self, loaded: Iterable[Served]) -> Metric:
        now = {(label_of(model.names[0]), role_of(model).kind) for model in loaded}
        self._seen |= dict.fromkeys(sorted(now))
        return gauges(
            f"{OWN}model_loaded",
            "1 while a model is in memory, 0 once it has left, by its kind: chat, embedding or "
            "rerank.",
            (MODEL, "kind"),
            {labels: float(labels in now) for labels in self._seen},
        )
