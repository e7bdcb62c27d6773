"""Where drafts come from, and which of these ways a mode allows."""

from enum import StrEnum
from typing import Literal


class Method(StrEnum):
    """What a grammar forces, the text itself, a draft model, or heads of the model itself."""

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
    """The methods that a mode allows, as far as the model has what they need. Heads are loaded in
    the mode `heads` alone: they cost memory and a part of each step."""
    return _ALLOWED[mode]
