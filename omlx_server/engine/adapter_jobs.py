"""The job that loads an adapter of a model, once however many ask for it, and makes room for it
among those that are loaded. Runs on the mlx thread."""

import time

from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.room import Boundless, within
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import Unavailable

# So long a request waits while all adapters that may be loaded are in use.
_PATIENCE_SECONDS = 30.0


def load_adapter(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    """A job that loads an adapter, unless it is there. Where another job loads one, it waits for
    that.

    Raises:
        AdapterUnusable: its files can't be read, don't fit the model, or are too large.
        NoMemory: there is too little memory for it, as `within`.
        Unavailable: all adapters that may be loaded are in use, and stay so for 30 seconds.
    """
    own, until = instance.adapters, time.monotonic() + _PATIENCE_SECONDS
    own.check(adapter)
    while own.changing and not own.adapters.has(adapter):
        yield
    if own.adapters.has(adapter):
        return
    with own.changing_alone():
        while own.is_full(adapter):
            yield from _let_one_go(instance, until)
        room = Boundless() if instance.watch is None else JobRoom(instance.watch.share)
        yield from within(room, own.adapters.needs(adapter), _loading(instance, adapter))


def _let_one_go(instance: ModelInstance, until: float) -> Work[None]:
    """Wait for an adapter that nothing uses, at most until this time.monotonic(), and let it go."""
    own = instance.adapters
    while (idle := own.first_to_go()) is None:
        if time.monotonic() > until:
            count = len(own.adapters.loaded)
            raise Unavailable(
                f"all {count} adapters that may be loaded are in use. What helps: a higher "
                "adapters.max_loaded or adapters.max_bytes",
                retry_after=1,
            )
        yield
    yield from own.adapters.unloading(idle)
    own.weigh(instance.watch)


def _loading(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    yield from instance.adapters.adapters.loading(instance.runner.loaded.target, adapter)
    instance.adapters.weigh(instance.watch)
