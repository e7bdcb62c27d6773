"""Checks what `serve` can know before it imports MLX, which takes seconds: that its address is
free, and that its models are here or can be downloaded. The server repeats these checks when it
starts."""

from omlx_server.models import catalogue, locate
from omlx_server.process.listen import listening
from omlx_server.settings import Settings


def check_start(settings: Settings, model: str) -> None:
    """Check the address and the models of a server. Uses no network.

    Raises:
        UsageError: another program has the address, or the address can't be used.
        ModelUnavailable: there is no model of one of the names, or it is not whole.
    """
    server, models = settings.server, settings.models
    with listening(server.host, server.port, server.uds):
        pass
    names = (model, models.embedding, models.reranker, settings.speculation.draft_model)
    for name in filter(None, names):
        if name not in catalogue.NAMES:
            locate.find_or_expect(name, models)
