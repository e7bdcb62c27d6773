"""Pins of all models, of those that are not loaded as well. Lives on the mlx thread."""

from collections.abc import Callable, Iterable, Iterator

from omlx_server.core.blocks.pins import Pin, PinReport, Pins, Unpinned
from omlx_server.engine.model_instance import Lane
from omlx_server.store.cold import ColdTier


class PinBoard:
    """What each tenant sees and ends. `lanes` are those at work now; without a lane a pin holds
    what the cold tier has."""

    def __init__(
        self,
        pins: Pins,
        lanes: Callable[[], Iterable[Lane]],
        cold: Callable[[], ColdTier | None],
    ) -> None:
        self._pins = pins
        self._lanes = lanes
        self._cold = cold
        self._left_behind: frozenset[str] = frozenset()

    def of(self, salt: bytes) -> list[PinReport]:
        """Those of one tenant, the oldest first."""
        return [self._report(pin) for pin in self._pins.all() if pin.is_of(salt)]

    def made(self, pin: Pin) -> PinReport:
        """A lane has made it, which may have no cold tier: another has the same weights and
        writes for both. Save it."""
        cold = self._cold()
        if cold is not None:
            cold.save_pins()
        return self._report(pin)

    def leave_cold(self) -> None:
        """There is no cold tier from now on, and its file of pins stays as it is: nothing there is
        to be touched any more, and another server may be the one that writes it by now."""
        self._left_behind = frozenset(pin.id for pin in self._pins.all())

    def end(self, id: str, salt: bytes) -> Unpinned:
        """A server that uses the directory of a cold tier that was left will keep the pin again, so
        who ends it is told."""
        pin = self._pins.get(id)
        if pin is None or not pin.is_of(salt):
            return Unpinned.UNKNOWN
        self._pins.remove(id)
        for lane in self._at_work(pin):
            lane.unpinned(pin)
        cold = self._cold()
        if cold is not None:
            cold.index.unpinned(pin.keys)
            cold.save_pins()
        return Unpinned.STORED if id in self._left_behind else Unpinned.ENDED

    def _report(self, pin: Pin) -> PinReport:
        cold = self._cold()
        return pin.report(
            hot={key for lane in self._at_work(pin) for key in pin.keys if key in lane.cache.index},
            cold=cold.index if cold is not None else (),
        )

    def _at_work(self, pin: Pin) -> Iterator[Lane]:
        return (lane for lane in self._lanes() if lane.cache.namespace == pin.namespace)
