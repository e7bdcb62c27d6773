"""Policies: in which order the prompts of one priority class are read, and whether keys share the
rows. Frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from omlx_server.core.scheduler.sequence import Prefill


class Policy(Protocol):
    @property
    def shares_rows(self) -> bool:
        """Whether a key that holds the rows makes way for another one that waits."""

    def rank(self, prefill: Prefill, used: float, place: int) -> tuple[float, ...]:
        """The lowest is read first. `used`: the seconds that its key had of late; `place`: whether
        it is the turn of prompts of its size."""


@dataclass(frozen=True, slots=True)
class Fair:
    """The key that had least of the machine of late; the size whose turn it is; arrival."""

    shares_rows: bool = True

    def rank(self, prefill: Prefill, used: float, place: int) -> tuple[float, ...]:
        return used, place, prefill.request.arrived, prefill.order


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Arrival alone. Who had to go back to the queue has its old place there."""

    shares_rows: bool = False

    def rank(self, prefill: Prefill, used: float, place: int) -> tuple[float, ...]:
        return prefill.request.arrived, prefill.order


POLICIES: Mapping[str, Policy] = MappingProxyType({"fair": Fair(), "fcfs": FirstCome()})
