"""The JSON of chat completions, whole and in chunks, as the openai package's types want it."""

from collections.abc import Iterable
from typing import Any

from omlx_server.api.choices import ChoiceDelta, LoggedToken, Usage
from omlx_server.text.answer import TokenEntry
from omlx_server.text.parts import (
    Arguments,
    Assembled,
    Call,
    CallStart,
    Part,
    Reasoning,
    Text,
)

SERVICE_TIER = "default"
"""All requests are of one tier."""


def usage(usage: Usage) -> dict[str, Any]:
    dropped = {"dropped_messages": usage.dropped} if usage.dropped else {}
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached, **dropped},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def logprobs(tokens: Iterable[LoggedToken]) -> dict[str, Any]:
    content = [
        {**_entry(token.entry), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def finite(logprob: float | None) -> float | None:
    """-inf has no JSON form; -9999.0 is what OpenAI and vLLM send for it."""
    return None if logprob is None else max(logprob, -9999.0)


def _entry(entry: TokenEntry) -> dict[str, Any]:
    return {"token": entry.text, "logprob": finite(entry.logprob), "bytes": entry.bytes}


class ChatShapes:
    """The parts that all chunks of one response share. `fingerprint` names what computes it."""

    def __init__(
        self, id: str, created: int, model: str, fingerprint: str, *, with_logprobs: bool
    ) -> None:
        self._common = {
            "id": id,
            "created": created,
            "model": model,
            "service_tier": SERVICE_TIER,
            "system_fingerprint": fingerprint,
        }
        self._with_logprobs = with_logprobs

    def completion(self, choices: list[dict[str, Any]], counts: Usage) -> dict[str, Any]:
        return {
            **self._common,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(counts),
        }

    def choice(
        self, index: int, answer: Assembled, tokens: list[LoggedToken], finish: str | None
    ) -> dict[str, Any]:
        # Where there are calls only, there is no content, not an empty one.
        content = answer.text or (None if answer.calls else "")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "annotations": [],
        }
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        return {
            "index": index,
            "message": {**message, **_reasoning(answer.reasoning)},
            "logprobs": logprobs(tokens) if self._with_logprobs else None,
            "finish_reason": finish,
        }

    def opening(self, index: int) -> dict[str, Any]:
        """The first chunk of a choice: the role, no text."""
        return self._chunk([self._chunk_choice(index, {"role": "assistant", "content": ""})])

    def delta(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """A chunk for each part, and a chunk with the end, if it ended."""
        shapes = [_part(part) for part in delta.parts]
        if delta.tokens and not shapes:
            shapes = [{"content": ""}]
        choices = [self._chunk_choice(delta.index, shape) for shape in shapes]
        if choices and self._with_logprobs:
            choices[-1]["logprobs"] = logprobs(delta.tokens)
        if delta.finish:
            choices.append(self._chunk_choice(delta.index, {}, delta.finish))
        return [self._chunk([choice]) for choice in choices]

    def last(self, counts: Usage) -> dict[str, Any]:
        """The chunk after all others, with the usage."""
        return {**self._chunk([]), "usage": usage(counts)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._common, "object": "chat.completion.chunk", "choices": choices}

    def _chunk_choice(
        self, index: int, delta: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _part(part: Part) -> dict[str, Any]:
    """The delta of a chunk."""
    match part:
        case Text():
            return {"content": part.text}
        case Reasoning():
            return _reasoning(part.text)
        case CallStart():
            function = {"name": part.name, "arguments": ""}
            opening = {"index": part.index, "id": part.id, "type": "function"}
            return {"tool_calls": [{**opening, "function": function}]}
        case Arguments():
            function = {"arguments": part.fragment}
            return {"tool_calls": [{"index": part.index, "function": function}]}


def _call(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _reasoning(text: str) -> dict[str, Any]:
    """By both names that clients read."""
    return {"reasoning_content": text, "reasoning": text} if text else {}
