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


def nonce() -> str:
    """Return 24 random digits, which no normalizer changes."""
    return str(10**23 + secrets.randbelow(9 * 10**23))


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the leftmost and, there, the longest of `texts`: a trie, for
    speed."""
    wanted = sorted({text for text in texts if text})
    return re.compile(_branches(wanted) if wanted else r"(?!)")


def _branches(texts: list[str]) -> str:
    return "|".join(_branch(list(group)) for _, group in groupby(texts, key=lambda text: text[0]))


def _branch(texts: list[str]) -> str:
    pairs = zip(texts[0], texts[-1], strict=False)  # sorted: what these two share, all share
    prefix = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    rests = [text[len(prefix) :] for text in texts]
    longer = [tail for tail in rests if tail]
    if not longer:
        return re.escape(prefix)
    optional = "?" if len(longer) < len(rests) else ""
    return f"{re.escape(prefix)}(?:{_branches(longer)}){optional}"
