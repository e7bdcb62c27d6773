"""Policies: in which order the prompts of one priority class are prefilled, and whether keys share
the rows. Frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from omlx_server.core.scheduler.sequence import Prefill


class Policy(Protocol):
    @property
    def shares_rows(self) -> bool:
        """Whether a key that holds most rows gives some to another key that waits."""

    def rank(self, prefill: Prefill, used: float, place: int) -> tuple[float, ...]:
        """The sort key of a prompt: the lowest is prefilled first. `used`: seconds of the machine
        that its API key had of late. `place`: where its size stands in the order of turns, 0 for
        the size whose turn it is."""


@dataclass(frozen=True, slots=True)
class Fair:
    """Prompts of the key that had least of the machine of late are prefilled first; of one key, the
    size whose turn it is; of one size, the first to arrive."""

    shares_rows: bool = True

    def rank(self, prefill: Prefill, used: float, place: int) -> tuple[float, ...]:
        return used, place, prefill.request.arrived, prefill.order


@dataclass(frozen=True, slots=True)
class FirstCome:
    """The first to arrive is prefilled first. A sequence that goes back to the queue has the place
    of its arrival there."""

    shares_rows: bool = False

    def rank(self, prefill: Prefill, used: float, place: int) -> tuple[float, ...]:
        return prefill.request.arrived, prefill.order


POLICIES: Mapping[str, Policy] = MappingProxyType({"fair": Fair(), "fcfs": FirstCome()})
