"""What the last line of a request in the log says. Pure.

Of what a client has sent it has the names that this server knows (route, model), and where there is
no such route the path: never a query, a key, a prompt or an answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from omlx_server.api.http.phases import Phases

Fields = dict[str, str | int | float]

_LONGEST_PATH = 200
_ODD = re.compile(r"[^!-~]")
_WORDS: Final = {
    "model": "{}",
    "prompt_tokens": "{} tokens in",
    "cached_tokens": "{} cached",
    "completion_tokens": "{} out",
    "ttft_seconds": "first after {} s",
    "tokens_per_second": "{} tok/s",
    "finish_reason": "{}",
    "error": "{}",
    "path": "path {}",
}


def work(phases: Sequence[Phases], started: float) -> Fields:
    """Tokens and times of all prompts of a request that was there at `started`; empty without any.
    `tokens_per_second` is of all choices together, from the first token to the last."""
    if not phases:
        return {}
    fields: Fields = {
        "prompt_tokens": sum(one.prompt_tokens for one in phases),
        "cached_tokens": sum(one.cached_tokens for one in phases),
        "completion_tokens": sum(one.generated for one in phases),
    }
    first = min((one.first for one in phases if one.first is not None), default=None)
    last = max((one.last for one in phases if one.last is not None), default=None)
    if first is not None and last is not None:
        fields["ttft_seconds"] = round(first - started, 6)
        tokens = sum(one.generated for one in phases) - 1
        if tokens and last > first:
            fields["tokens_per_second"] = round(tokens / (last - first), 1)
    reasons = {reason for one in phases for reason in one.finished}
    fields["finish_reason"] = ",".join(sorted(reasons)) or "interrupted"
    return fields


def shown_path(raw: bytes) -> str:
    """A path as it was sent, without a query, in one line and of a bounded length."""
    path = raw.partition(b"?")[0].decode("latin-1")
    shown = _ODD.sub(lambda match: f"%{ord(match[0]):02X}", path[: _LONGEST_PATH + 1])
    return shown if len(shown) <= _LONGEST_PATH else f"{shown[:_LONGEST_PATH]}..."


def in_words(fields: Mapping[str, str | int | float]) -> str:
    """The same for people, with a comma before each part."""
    known = ((words, fields[name]) for name, words in _WORDS.items() if name in fields)
    parts = (words.format(round(v, 3) if isinstance(v, float) else v) for words, v in known)
    return "".join(f", {part}" for part in parts)
