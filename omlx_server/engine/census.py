"""Counters of all models, unloaded ones too. The mlx thread writes, any thread reads."""

from collections.abc import Collection
from threading import Lock
from typing import Protocol

from omlx_server.engine.messages import Counted, ModelId, Status


class CountedModel(Protocol):
    status: Status

    def tally(self) -> Counted: ...


class Census:
    """The counters of each model name over all loads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._unloaded: dict[str, Counted] = {}  # by name
        self._loaded: dict[ModelId, tuple[str, CountedModel]] = {}

    @property
    def unloaded(self) -> Collection[Counted]:
        with self._lock:
            return list(self._unloaded.values())

    @property
    def counted(self) -> dict[str, Counted]:
        with self._lock:
            counts, loaded = dict(self._unloaded), list(self._loaded.values())
        for name, model in loaded:
            counts[name] = model.status.counted.after(counts.get(name, Counted()))
        return counts

    def add(self, id: ModelId, name: str, model: CountedModel) -> None:
        with self._lock:
            self._loaded[id] = name, model

    def remove(self, id: ModelId) -> None:
        if id not in self._loaded:
            return
        name, model = self._loaded[id]
        earlier = self._unloaded.get(name, Counted())
        # Counted() has no sizes, so the sum has none: the model holds nothing any more.
        total = Counted().after(model.tally()).after(earlier)
        with self._lock:
            del self._loaded[id]
            self._unloaded[name] = total
