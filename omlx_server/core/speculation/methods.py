"""Sources of drafts, and which of them a mode allows."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Flag, StrEnum, auto
from typing import Literal


class Method(StrEnum):
    """A grammar's forced tokens, the text itself, a draft model, or the model's own heads."""

    GRAMMAR = "grammar"
    NGRAM = "ngram"
    DRAFT = "draft"
    HEADS = "heads"


Mode = Literal["off", "auto", "ngram", "draft", "heads"]

NOTHING: frozenset[Method] = frozenset()
_ALLOWED: dict[Mode, frozenset[Method]] = {
    "off": NOTHING,
    "auto": frozenset(Method),
    "ngram": frozenset((Method.GRAMMAR, Method.NGRAM)),
    "draft": frozenset((Method.GRAMMAR, Method.DRAFT)),
    "heads": frozenset((Method.GRAMMAR, Method.NGRAM, Method.HEADS)),
}


def methods_of(mode: Mode) -> frozenset[Method]:
    return _ALLOWED[mode]


class DraftVerification(Flag):
    """Whether rows can verify drafts, alone or beside others."""

    NEVER = 0
    ALONE = auto()
    TOGETHER = auto()
    ALWAYS = ALONE | TOGETHER


@dataclass(slots=True)
class DraftCounts:
    drafted: Counter[Method] = field(default_factory=Counter)
    accepted: Counter[Method] = field(default_factory=Counter)

    def note(self, method: Method, drafted: int, accepted: int) -> None:
        self.drafted[method] += drafted
        self.accepted[method] += accepted

    def after(self, earlier: "DraftCounts") -> "DraftCounts":
        return DraftCounts(self.drafted + earlier.drafted, self.accepted + earlier.accepted)
