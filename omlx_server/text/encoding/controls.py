"""Control tokens: added tokens that only a template may write, flagged special or shaped as a
turn marker such as `<｜User｜>`. Unflagged markup such as `<think>` is none."""

import re
import secrets
from collections.abc import Iterable
from itertools import groupby, takewhile

from tokenizers import AddedToken

_TURN_MARKER = re.compile(r"<[|｜][^\s<>]+>|<[^\s<>]+[|｜]>|\[/?[A-Z][A-Z0-9_]*\]")


def is_control(token: AddedToken) -> bool:
    return token.special or _TURN_MARKER.fullmatch(token.content) is not None


def random_digits() -> str:
    """Return 24 random digits, which no normalizer changes."""
    return str(10**23 + secrets.randbelow(9 * 10**23))


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the leftmost and, there, the longest of `texts`: a trie, for
    speed."""
    distinct = sorted({text for text in texts if text})
    return re.compile(_alternatives(distinct) if distinct else r"(?!)")


def _alternatives(texts: list[str]) -> str:
    groups = groupby(texts, key=lambda text: text[0])
    return "|".join(_trie_branch(list(group)) for _, group in groups)


def _trie_branch(texts: list[str]) -> str:
    pairs = zip(texts[0], texts[-1], strict=False)  # sorted: what these two share, all share
    prefix = "".join(char for char, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    endings = [text[len(prefix) :] for text in texts]
    nonempty = [ending for ending in endings if ending]
    if not nonempty:
        return re.escape(prefix)
    optional = "?" if len(nonempty) < len(endings) else ""
    return f"{re.escape(prefix)}(?:{_alternatives(nonempty)}){optional}"
