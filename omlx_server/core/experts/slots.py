"""Chooses the experts of a layer that are in memory. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# How much of an expert's score is left after one forward: half after some 70.
_AGEING = 0.99
_MOST_UNIT = 1e100


@dataclass(frozen=True, slots=True)
class ExpertPass:
    """Experts that are computed at once."""

    experts: Sequence[int]
    loads: Mapping[int, int]  # experts to read first, and their slots


class ExpertSlots:
    """The experts in a layer's slots. A slot that is read into is empty."""

    def __init__(self, slots: int) -> None:
        self.slot_of = dict[int, int]()
        self._expert_in: list[int | None] = [None] * slots
        self._scores = dict[int, float]()
        self._unit = 1.0

    def use(self, counts: Mapping[int, int]) -> None:
        """Note which experts a forward uses, for how many tokens. Old uses count less."""
        total = sum(counts.values())
        for expert, count in counts.items():
            self._scores[expert] = self._scores.get(expert, 0.0) + self._unit * count / total
        self._unit /= _AGEING
        if self._unit > _MOST_UNIT:
            self._scores = {e: score / self._unit for e, score in self._scores.items()}
            self._unit = 1.0

    def passes(self, experts: Iterable[int]) -> list[ExpertPass]:
        """Return the passes over `experts`: those in memory first, each other one read once."""
        wanted = sorted(experts)
        present = [expert for expert in wanted if expert in self.slot_of]
        missing = [expert for expert in wanted if expert not in self.slot_of]
        result = [ExpertPass(present, {})] if present else []
        if not missing:
            return result
        free = self._by_worth(without=present)
        at_once = len(missing)
        if len(missing) > len(free):
            # In turns, through the half that is worth least: a pass leaves alone the slots of the
            # one before, unless there is one only.
            half = max(2, len(self._expert_in) // 2)
            free = self._by_worth()[:half]
            at_once = max(1, len(free) // 2)
        for start in range(0, len(missing), at_once):
            group = missing[start : start + at_once]
            slots = [free[(start + i) % len(free)] for i in range(len(group))]
            result.append(ExpertPass(group, dict(zip(group, slots, strict=True))))
        return result

    def ahead(self, experts: Iterable[int]) -> dict[int, int]:
        """Return slots for experts that may be used next, half of all at most."""
        wanted = list(dict.fromkeys(experts))
        missing = [expert for expert in wanted if expert not in self.slot_of]
        free = self._by_worth(without=wanted)[: len(self._expert_in) // 2]
        return dict(zip(missing, free, strict=False))

    def empty(self, slot: int) -> None:
        expert = self._expert_in[slot]
        if expert is not None:
            del self.slot_of[expert]
            self._expert_in[slot] = None

    def fill(self, slot: int, expert: int) -> None:
        self.empty(slot)
        self.slot_of[expert], self._expert_in[slot] = slot, expert

    def _by_worth(self, without: Iterable[int] = ()) -> list[int]:
        # Those first whose expert is used least.
        kept = {self.slot_of[expert] for expert in without if expert in self.slot_of}
        scores = [
            -1.0 if expert is None else self._scores.get(expert, 0.0) for expert in self._expert_in
        ]
        slots = (slot for slot in range(len(scores)) if slot not in kept)
        return sorted(slots, key=scores.__getitem__)
