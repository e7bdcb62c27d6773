"""Compares two greedy answers to one prompt: the same, different by rounding, or wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from omlx_server.compute.bare import gap_after
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.doctor.selftest.session import GreedyAnswer


class SelftestVerdict(StrEnum):
    SAME = "same"
    TIE = "tie"
    WRONG = "wrong"


@dataclass(slots=True)
class Tally:
    """The number of answers by verdict, and the problem of one that was not whole."""

    same: int = 0
    ties: int = 0
    wrong: int = 0
    problem: str = ""

    @property
    def asked(self) -> int:
        return self.same + self.ties + self.wrong

    @property
    def by_ties(self) -> str:
        return f" ({self.ties} but for a tie of two tokens)" if self.ties else ""

    def count(
        self,
        loaded: LoadedModel,
        prompt: Sequence[int],
        expected: GreedyAnswer,
        answer: GreedyAnswer,
    ) -> None:
        self.problem = self.problem or expected.problem or answer.problem
        match verdict(loaded, prompt, expected.tokens, answer.tokens):
            case SelftestVerdict.SAME:
                self.same += 1
            case SelftestVerdict.TIE:
                self.ties += 1
            case SelftestVerdict.WRONG:
                self.wrong += 1


def verdict(
    loaded: LoadedModel, prompt: Sequence[int], expected: Sequence[int], answer: Sequence[int]
) -> SelftestVerdict:
    """Return the verdict. In a tie the answers first differ by two tokens that are equally likely
    within the precision; what follows is not compared."""
    if expected == answer:
        return SelftestVerdict.SAME
    pairs = zip(expected, answer, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return SelftestVerdict.WRONG  # one of them is shorter
    gap = gap_after(loaded, [*prompt, *expected[:at]], expected[at], answer[at])
    return SelftestVerdict.TIE if gap.is_tie else SelftestVerdict.WRONG
