"""Drop messages of a conversation that is longer than the context (policies: `text/overflow.py`).

Earlier turns go first, then the last turn's oldest calls with their results. Leading system
messages and the last user message stay.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from omlx_server.errors import BadRequest, ContextTooLong
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.overflow import Overflow, Unit, Window, just_enough
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.turns import front_of, units_of

Message = dict[str, Any]
Encode = Callable[[Sequence[Message], int], list[int]]

# Tokens of a message besides its text, where the template refuses the probe.
_OVERHEAD = 8
_USER: Message = {"role": "user", "content": "a"}
_ASSISTANT: Message = {"role": "assistant", "content": "a"}
# If the chosen messages are too long as a prompt, all estimated costs get the next factor.
_FACTORS = (1.0, 1.15, 1.5, 2.5)


@dataclass(frozen=True, slots=True)
class Fitted:
    messages: list[Message]
    tokens: list[int]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Fitter:
    """Fits one conversation into `context` tokens, its prompt into `limit`, in time linear in its
    length. `encode` raises ContextTooLong for more tokens than its second argument."""

    overflow: Overflow
    tokenizer: Tokenizer
    context: int
    limit: int
    encode: Encode
    images: ImageMarks | None = None

    def fitted(self, messages: list[Message]) -> Fitted:
        """Return the messages that fit. Raises ContextTooLong where those that must stay do not."""
        front, units = messages[: front_of(messages)], units_of(messages, self._costs(messages))
        base = self._tokens([*front, _USER])
        if base is None:
            raise self._too_long()
        for factor in _FACTORS:
            keeps = self._kept(units, len(base), factor)
            if keeps is None:
                break
            positions = [p for unit in compress(units, keeps) for p in unit.messages]
            chosen = [*front, *(messages[position] for position in positions)]
            tokens = self._tokens(chosen)
            if tokens is not None:
                return Fitted(chosen, tokens, len(messages) - len(chosen))
        raise self._too_long()

    def _too_long(self) -> ContextTooLong:
        reserved = self.context - self.limit
        return ContextTooLong(self.context, self.limit + 1, reserved=reserved)

    def _kept(self, units: Sequence[Unit], front: int, factor: float) -> list[bool] | None:
        scaled = [replace(unit, cost=round(unit.cost * factor)) for unit in units]
        if self.overflow.policy == "truncate":
            return just_enough(scaled, self.limit, front)
        low = min(self.limit, int(self.context * self.overflow.low_water))
        return Window(self.limit, low, front).kept(scaled)

    def _costs(self, messages: Sequence[Message]) -> list[int]:
        overhead = self._overhead()
        texts = [_text_of(message) for message in messages]
        if self.images is None:
            return [overhead + count for count in self.tokenizer.counts(texts, self.limit)]
        counts = self.tokenizer.counts([self.images.without(text) for text in texts], self.limit)
        seen = map(self.images.tokens, texts)
        return [overhead + count + more for count, more in zip(counts, seen, strict=True)]

    def _overhead(self) -> int:
        """Return the tokens that the template adds to a message: half the cost of two more."""
        try:
            three = len(self.encode([_USER, _ASSISTANT, _USER], self.limit))
            return max(1, -(-(three - len(self.encode([_USER], self.limit))) // 2))
        except BadRequest:
            return _OVERHEAD

    def _tokens(self, messages: Sequence[Message]) -> list[int] | None:
        try:
            return self.encode(messages, self.limit)
        except ContextTooLong:
            return None


def _text_of(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    written = json.dumps(calls, ensure_ascii=False) if calls else ""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return "\n".join(part for part in (message["content"], thought, written) if part)
