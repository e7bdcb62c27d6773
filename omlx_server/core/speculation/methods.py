"""Sources of drafts, and which of them a mode allows."""

from enum import StrEnum
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
