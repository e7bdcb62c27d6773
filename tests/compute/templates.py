"""A constraint for tests: a set of tokens for each place of the answer. Places with one token are
forced."""

from dataclasses import dataclass, replace
from typing import ClassVar

from tests.compute.warm_runs import tokens
from tests.tiny_models import VOCAB

Places = tuple[frozenset[int], ...]
ANY = frozenset(range(VOCAB))


@dataclass
class Template:
    """`ahead` says whether forced tokens are made known."""

    places: Places
    ahead: bool = True
    at: int = 0
    fails_at: int = -1
    takes_drafts: ClassVar[bool] = True
    too_costly: bool = False

    @property
    def done(self) -> bool:
        return self.at == len(self.places)

    @property
    def problem(self) -> str:
        return "the template is torn" if self.at == self.fails_at else ""

    def copy(self) -> "Template":
        return replace(self)

    def mask(self) -> bytes:
        allowed = sum(1 << token for token in self.places[self.at])
        return allowed.to_bytes(-(-VOCAB // 32) * 4, "little")

    def take(self, token: int) -> None:
        assert token in self.places[self.at], "a token that the mask does not allow"
        self.at += 1

    def forced(self) -> tuple[int, ...]:
        found: tuple[int, ...] = ()
        for place in self.places[self.at :] if self.ahead else ():
            if len(place) > 1:
                break
            found += tuple(place)
        return found


def literal(seed: object, count: int) -> Places:
    return tuple(frozenset({token}) for token in tokens(seed, count))


def form(seed: object) -> Places:
    """Choices between literals of many lengths, as JSON of a schema is."""
    few = frozenset(tokens(f"few {seed}", 5))
    return (ANY, *literal(seed, 7), few, few, *literal(f"2 {seed}", 21), ANY, *literal(3, 1), few)
