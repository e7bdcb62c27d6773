"""Pins of all models, loaded or not. Lives on the mlx thread."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from omlx_server.core.blocks.keys import root_key
from omlx_server.core.blocks.pins import Pin, PinReport, Pins, Unpinned
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.store.cold import ColdTier


@dataclass(slots=True, eq=False)
class PinBoard:
    """The pins of all tenants. For an unloaded model it holds what the `cold` tier has."""

    pins: Pins
    instances: Callable[[], Iterable[ModelInstance]]
    cold: Callable[[], ColdTier | None]
    _ids_in_unused_tier: frozenset[str] = field(default=frozenset(), init=False)

    def reports(self, salt: bytes) -> list[PinReport]:
        return [self._report(pin) for pin in self.pins.all() if pin.is_of(salt)]

    def save(self, pin: Pin, salt: bytes) -> PinReport:
        if not pin.is_of(salt):  # its blocks are those of an adapter
            pin = replace(pin, tenant=root_key(pin.namespace, salt))
            self.pins.add(pin)
        cold = self.cold()
        if cold is not None:
            cold.save_pins()
        return self._report(pin)

    def leave_cold(self) -> None:
        """Note that the cold tier is not used any more."""
        self._ids_in_unused_tier = frozenset(pin.id for pin in self.pins.all())

    def end(self, id: str, salt: bytes) -> Unpinned:
        """End a pin. Unpinned.STORED: an unused cold tier still has it."""
        pin = self.pins.get(id)
        if pin is None or not pin.is_of(salt):
            return Unpinned.UNKNOWN
        self.pins.remove(id)
        for instance in self._instances_of(pin):
            instance.release_pin(pin)
        cold = self.cold()
        if cold is not None:
            cold.index.release_pinned(pin.keys)
            cold.save_pins()
        return Unpinned.STORED if id in self._ids_in_unused_tier else Unpinned.ENDED

    def _report(self, pin: Pin) -> PinReport:
        cold = self.cold()
        return pin.report(
            hot={
                key
                for instance in self._instances_of(pin)
                for key in pin.keys
                if key in instance.cache.index
            },
            cold=cold.index if cold is not None else (),
        )

    def _instances_of(self, pin: Pin) -> Iterator[ModelInstance]:
        return (
            instance for instance in self.instances() if instance.cache.namespace == pin.namespace
        )
