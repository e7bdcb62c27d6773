"""Conversations that outgrew the context: what of them is left out (`core/window.py`).

The system message, the tools and the user's last words always stay. Of a long last turn the oldest
rounds of calls go. A call never goes without its results.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.core.window import Overflow, Unit, Window, just_enough
from omlx_server.errors import BadRequest, ContextTooLong
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.turns import front_of, groups_of, units_of

Message = dict[str, Any]
Encode = Callable[[Sequence[Message], int], list[int]]

# Where a template can't be asked.
_OVERHEAD = 8
_USER: Message = {"role": "user", "content": "a"}
_ASSISTANT: Message = {"role": "assistant", "content": "a"}
# Costs are estimates: of messages by themselves. Should they be too low, these times as much.
_FACTORS = (1.0, 1.15, 1.5, 2.5)


@dataclass(frozen=True, slots=True)
class Fitted:
    """What stays, its tokens as a prompt, and how many messages do not."""

    messages: list[Message]
    tokens: list[int]
    dropped: int


class Fitter:
    """Fits one conversation. `limit`: the most tokens of its prompt. `encode` renders messages, and
    raises ContextTooLong where they make more tokens than that.

    Each message is encoded once by itself, and what stays for each factor that is tried: the work
    grows with the length of the conversation, not with its square.
    """

    def __init__(
        self, overflow: Overflow, tokenizer: Tokenizer, context: int, limit: int, encode: Encode
    ) -> None:
        self._overflow = overflow
        self._tokenizer = tokenizer
        self._context = context
        self._limit = limit
        self._encode = encode

    def fitted(self, messages: list[Message]) -> Fitted:
        """Raises ContextTooLong where what must stay is too long already."""
        groups, front = groups_of(messages), messages[: front_of(messages)]
        units = units_of(messages, groups, self._costs(messages))
        base = self._tokens([*front, _USER])
        if base is None:
            raise self._too_long()
        for factor in _FACTORS:
            kept = self._kept(units, len(base), factor)
            if kept is None:
                break
            positions = [
                p for g, stays in zip(groups, kept, strict=True) if stays for p in g.messages
            ]
            chosen = [*front, *(messages[position] for position in positions)]
            tokens = self._tokens(chosen)
            if tokens is not None:
                return Fitted(chosen, tokens, len(messages) - len(chosen))
        raise self._too_long()

    def _too_long(self) -> ContextTooLong:
        reserved = self._context - self._limit
        return ContextTooLong(self._context, self._limit + 1, reserved=reserved)

    def _kept(self, units: Sequence[Unit], front: int, factor: float) -> list[bool] | None:
        scaled = [Unit(u.turn, round(u.cost * factor), u.head, u.asks) for u in units]
        if self._overflow.policy == "truncate":
            return just_enough(scaled, self._limit, front)
        low = min(self._limit, int(self._context * self._overflow.low_water))
        return Window(self._limit, low, front).kept(scaled)

    def _costs(self, messages: Sequence[Message]) -> list[int]:
        """A message that is over the limit by itself is not encoded any further: it goes, or
        nothing helps."""
        overhead = self._overhead()
        counts = self._tokenizer.counts([_text_of(message) for message in messages], self._limit)
        return [overhead + count for count in counts]

    def _overhead(self) -> int:
        """Tokens of a message besides its text."""
        try:
            three = len(self._encode([_USER, _ASSISTANT, _USER], self._limit))
            return max(1, -(-(three - len(self._encode([_USER], self._limit))) // 2))
        except BadRequest:
            return _OVERHEAD

    def _tokens(self, messages: Sequence[Message]) -> list[int] | None:
        """None where they are too long."""
        try:
            return self._encode(messages, self._limit)
        except ContextTooLong:
            return None


def _text_of(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    written = json.dumps(calls, ensure_ascii=False) if calls else ""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return "\n".join(part for part in (message["content"], thought, written) if part)
