"""Drop messages of a conversation that is longer than the context (policies: `text/overflow.py`).

Earlier turns go first, then the last turn's oldest calls with their results. Leading system
messages and the last user message stay.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from omlx_server.errors import BadRequest, ContextTooLong
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.overflow import Overflow, Unit, Window, front_length, just_enough, units_of
from omlx_server.text.tokenizer import Tokenizer

TemplateMessage = dict[str, Any]
# It raises ContextTooLong for more tokens than its second argument.
Encode = Callable[[Sequence[TemplateMessage], int], list[int]]

# Tokens of a message besides its text, where the template refuses the probe.
_USUAL_OVERHEAD = 8
_USER: TemplateMessage = {"role": "user", "content": "a"}
_ASSISTANT: TemplateMessage = {"role": "assistant", "content": "a"}
# Costs are estimates: where the chosen messages are too long after all, the next factor is tried.
_COST_FACTORS = (1.0, 1.15, 1.5, 2.5)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits, its messages, and how many were dropped."""

    messages: list[TemplateMessage]
    tokens: list[int]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Fitter:
    """Fits one conversation into `context` tokens, its prompt into `limit`, in linear time."""

    overflow: Overflow
    tokenizer: Tokenizer
    context: int
    limit: int
    encode: Encode
    images: ImageMarks | None = None

    def fit(self, messages: list[TemplateMessage]) -> Fitted:
        """Return the messages that fit. Raises ContextTooLong where those that must stay do not."""
        front = messages[: front_length(messages)]
        units = units_of(messages, self._message_costs(messages))
        front_tokens = self._encode_if_it_fits([*front, _USER])
        if front_tokens is None:
            raise self._too_long()
        for factor in _COST_FACTORS:
            stays = self._choose_units(units, len(front_tokens), factor)
            if stays is None:
                break
            positions = [p for unit in compress(units, stays) for p in unit.messages]
            chosen = [*front, *(messages[position] for position in positions)]
            tokens = self._encode_if_it_fits(chosen)
            if tokens is not None:
                return Fitted(chosen, tokens, len(messages) - len(chosen))
        raise self._too_long()

    def _too_long(self) -> ContextTooLong:
        reserved = self.context - self.limit
        return ContextTooLong(self.context, self.limit + 1, reserved=reserved)

    def _choose_units(self, units: Sequence[Unit], front: int, factor: float) -> list[bool] | None:
        """Return whether each unit stays; None where too little can go. `front`: tokens."""
        scaled = [replace(unit, cost=round(unit.cost * factor)) for unit in units]
        if self.overflow.policy == "truncate":
            return just_enough(scaled, self.limit, front)
        low = min(self.limit, int(self.context * self.overflow.low_water))
        return Window(self.limit, low, front).kept(scaled)

    def _message_costs(self, messages: Sequence[TemplateMessage]) -> list[int]:
        """Estimate the tokens of each message."""
        overhead = self._tokens_around_a_message()
        texts = [_text_in(message) for message in messages]
        if self.images is None:
            return [overhead + count for count in self.tokenizer.counts(texts, self.limit)]
        without_images = [self.images.remove_marks(text) for text in texts]
        text_counts = self.tokenizer.counts(without_images, self.limit)
        image_counts = map(self.images.count_tokens, texts)
        return [overhead + sum(both) for both in zip(text_counts, image_counts, strict=True)]

    def _tokens_around_a_message(self) -> int:
        """Return the tokens that the template adds to a message: half the cost of two more."""
        try:
            one = len(self.encode([_USER], self.limit))
            three = len(self.encode([_USER, _ASSISTANT, _USER], self.limit))
            return max(1, math.ceil((three - one) / 2))
        except BadRequest:
            return _USUAL_OVERHEAD

    def _encode_if_it_fits(self, messages: Sequence[TemplateMessage]) -> list[int] | None:
        try:
            return self.encode(messages, self.limit)
        except ContextTooLong:
            return None


def _text_in(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    calls_text = json.dumps(calls, ensure_ascii=False) if calls else ""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return "\n".join(part for part in (message["content"], thought, calls_text) if part)
