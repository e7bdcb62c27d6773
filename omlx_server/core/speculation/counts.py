"""Counts of drafted and accepted tokens, by the source of the drafts."""

from collections import Counter
from dataclasses import dataclass, field

from omlx_server.core.speculation.methods import Method


@dataclass(slots=True)
class DraftCounts:
    drafted: Counter[Method] = field(default_factory=Counter)
    accepted: Counter[Method] = field(default_factory=Counter)

    def note(self, method: Method, drafted: int, accepted: int) -> None:
        self.drafted[method] += drafted
        self.accepted[method] += accepted

    def after(self, earlier: "DraftCounts") -> "DraftCounts":
        return DraftCounts(self.drafted + earlier.drafted, self.accepted + earlier.accepted)
