"""How many tokens were drafted, and how many of them were right, by where the drafts came from."""

from collections import Counter
from dataclasses import dataclass, field

from omlx_server.core.speculation.methods import Method


@dataclass(slots=True)
class DraftCounts:
    """Tokens by method; those that were right are `accepted`."""

    drafted: Counter[Method] = field(default_factory=Counter)
    accepted: Counter[Method] = field(default_factory=Counter)

    def note(self, method: Method, drafted: int, accepted: int) -> None:
        self.drafted[method] += drafted
        self.accepted[method] += accepted

    def after(self, earlier: "DraftCounts") -> "DraftCounts":
        """These counts with `earlier` ones added; a copy in any case."""
        return DraftCounts(self.drafted + earlier.drafted, self.accepted + earlier.accepted)
