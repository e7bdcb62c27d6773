"""Jobs on the mlx thread that load and unload a model's adapters."""

from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.room import Boundless, Room, within
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import AdapterUnusable


def load_adapter(instance: ModelInstance, adapter: Adapter) -> Work[bool]:
    """Load an adapter. Return False if there is no place now. No two may run at once. Raises
    AdapterUnusable, or NoMemory as `within`."""
    loaded, model = instance.adapters, instance.runner.loaded.target
    if instance.ranks.are_several:
        raise AdapterUnusable("a model that several machines compute takes no adapters")
    if loaded.weights.touch(adapter):
        return True
    loaded.check(adapter)
    loaded.weights.check(model, adapter)
    while loaded.is_full(adapter) or not _leaves_room(instance, adapter):
        idle = loaded.first_to_go()
        if idle is None:
            return False
        yield from _without(instance, idle)
    yield from within(_room(instance), loaded.weights.needs(adapter), _loading(instance, adapter))
    return True


def let_idle_go(instance: ModelInstance) -> Work[bool]:
    loaded, some = instance.adapters, False
    while (idle := loaded.first_to_go()) is not None:
        yield from _without(instance, idle)
        some = True
    return some


def _room(instance: ModelInstance) -> Room:
    return Boundless() if instance.watch is None else JobRoom(instance.watch.share)


def _leaves_room(instance: ModelInstance, adapter: Adapter) -> bool:
    if instance.watch is None:
        return True
    loaded, account = instance.adapters, instance.watch.share.account
    more = loaded.weights.nbytes_with(adapter) - loaded.weights.nbytes
    for holder in (share.holder for share in account.shares):
        if isinstance(holder, ModelInstance) and holder.watch is not None:
            guard = holder.watch.guard.under(account.limit - more, account.queue)
            if not holder.scheduler.all_fit(guard):
                return False
    return True


def _without(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    nbytes = instance.adapters.weights.needs_without(adapter)
    yield from within(_room(instance), nbytes, _letting_go(instance, adapter))


def _letting_go(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    loaded = instance.adapters
    if loaded.is_idle(adapter):
        yield from loaded.weights.unloading(adapter)
        loaded.update_account(instance.watch)


def _loading(instance: ModelInstance, adapter: Adapter) -> Work[None]:
    yield from instance.adapters.weights.loading(instance.runner.loaded.target, adapter)
    instance.adapters.update_account(instance.watch)
