"""Jobs on the mlx thread that load and unload a model's adapters."""

from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.room import within
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import job_room
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import AdapterUnusable


def load_adapter(instance: ModelInstance, adapter: Adapter) -> Work[bool]:
    """Load an adapter; False if there is no place now. Raises AdapterUnusable, or as `within`."""
    adapters, model = instance.adapters, instance.runner.loaded.target
    if instance.ranks.are_several:
        raise AdapterUnusable("a model that several machines compute takes no adapters")
    if adapters.weights.touch(adapter):  # it is loaded already
        return True
    adapters.check(adapter)
    adapters.weights.check(model, adapter)
    while adapters.is_full(adapter) or not _fits_beside_requests(instance, adapter):
        idle = adapters.longest_idle()
        if idle is None:
            return False
        yield from _unload(instance, idle)
    nbytes = adapters.weights.needs(adapter)
    yield from within(job_room(instance.watch), nbytes, _load_weights(instance, adapter))
    return True


def unload_idle_adapters(instance: ModelInstance) -> Work[bool]:
    """Unload all idle adapters. Return whether there were any."""
    were_any = False
    while (idle := instance.adapters.longest_idle()) is not None:
        yield from _unload(instance, idle)
        were_any = True
    return were_any


def _fits_beside_requests(instance: ModelInstance, adapter: Adapter) -> bool:
    """Return whether the requests of all models would still fit beside this adapter."""
    if instance.watch is None:
        return True
    weights, account = instance.adapters.weights, instance.watch.share.account
    added_bytes = weights.nbytes_with(adapter) - weights.nbytes
    for holder in (share.holder for share in account.shares):
        if isinstance(holder, ModelInstance) and holder.watch is not None:
            guard = holder.watch.guard.under(account.limit - added_bytes, account.queue)
            if not holder.scheduler.all_fit(guard):
                return False
    return True


def _unload(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    nbytes = instance.adapters.weights.needs_without(adapter)
    yield from within(job_room(instance.watch), nbytes, _unload_if_idle(instance, adapter))


def _unload_if_idle(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    adapters = instance.adapters
    if adapters.is_idle(adapter):  # it may be used again since memory was asked for
        yield from adapters.weights.unloading(adapter)
        adapters.update_account(instance.watch)


def _load_weights(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    yield from instance.adapters.weights.loading(instance.runner.loaded.target, adapter)
    instance.adapters.update_account(instance.watch)
