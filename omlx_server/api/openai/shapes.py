"""The JSON of chat completions, whole and in chunks, as the openai package's types want it."""

from collections.abc import Iterable

from omlx_server.api.chat.choices import ChoiceDelta, LoggedToken, Usage
from omlx_server.api.chat.finish import Finish
from omlx_server.api.openai import answers
from omlx_server.text.answers.answer import TokenEntry
from omlx_server.text.parts import (
    Arguments,
    Assembled,
    Call,
    CallStart,
    Part,
    Reasoning,
    Text,
)


def usage(usage: Usage) -> answers.Usage:
    prompt: answers.PromptTokensDetails = {"cached_tokens": usage.cached}
    if usage.dropped:
        prompt["dropped_messages"] = usage.dropped
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": prompt,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def logprobs(tokens: Iterable[LoggedToken]) -> list[answers.TokenLogprob]:
    """Token by token."""
    return [
        {**_entry(token.entry), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]


def finite(logprob: float | None) -> float | None:
    """-inf has no JSON form; -9999.0 is what OpenAI and vLLM send for it."""
    return None if logprob is None else max(logprob, -9999.0)


def _entry(entry: TokenEntry) -> answers.LikelyToken:
    return {"token": entry.text, "logprob": finite(entry.logprob), "bytes": entry.bytes}


class ChatShapes:
    """The parts that all chunks of one response share. `fingerprint` names what computes it. Usage
    in a last chunk, if it is wanted there."""

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        fingerprint: str,
        *,
        with_logprobs: bool,
        with_usage: bool,
    ) -> None:
        self._empty: answers.ChatCompletionChunk = {
            "id": id,
            "created": created,
            "model": model,
            "service_tier": "default",  # all requests are of one tier
            "system_fingerprint": fingerprint,
            "object": "chat.completion.chunk",
            "choices": [],
        }
        if with_usage:
            self._empty["usage"] = None
        self._with_logprobs = with_logprobs

    def completion(
        self, choices: list[answers.ChatChoice], counts: Usage
    ) -> answers.ChatCompletion:
        return {
            **self._empty,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(counts),
        }

    def choice(
        self, index: int, answer: Assembled, tokens: list[LoggedToken], finish: Finish
    ) -> answers.ChatChoice:
        message: answers.AssistantMessage = {
            "role": "assistant",
            # Where there are calls only, there is no content, not an empty one.
            "content": answer.text or (None if answer.calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        if answer.reasoning:  # by both names that clients read
            message["reasoning_content"] = message["reasoning"] = answer.reasoning
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": finish,
        }

    def opening(self, index: int) -> answers.ChatCompletionChunk:
        """The first chunk of a choice: the role, no text."""
        return self._chunk([_chunk_choice(index, {"role": "assistant", "content": ""})])

    def delta(self, delta: ChoiceDelta) -> list[answers.ChatCompletionChunk]:
        """A chunk for each part, and a chunk with the end, if it ended."""
        shapes = [_part(part) for part in delta.parts]
        if delta.tokens and not shapes:
            shapes = [{"content": ""}]
        choices = [_chunk_choice(delta.index, shape) for shape in shapes]
        if choices:
            choices[-1]["logprobs"] = self._logprobs(delta.tokens)
        if delta.finish:
            choices.append(_chunk_choice(delta.index, {}, delta.finish))
        return [self._chunk([choice]) for choice in choices]

    def last(self, counts: Usage) -> answers.ChatCompletionChunk:
        """The chunk after all others, with the usage."""
        return {**self._empty, "usage": usage(counts)}

    def _chunk(self, choices: list[answers.ChatChunkChoice]) -> answers.ChatCompletionChunk:
        return {**self._empty, "choices": choices}

    def _logprobs(self, tokens: Iterable[LoggedToken]) -> answers.ChatLogprobs | None:
        return {"content": logprobs(tokens), "refusal": None} if self._with_logprobs else None


def _chunk_choice(
    index: int, delta: answers.ChatDelta, finish: Finish | None = None
) -> answers.ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _part(part: Part) -> answers.ChatDelta:
    """The delta of a chunk."""
    match part:
        case Text():
            return {"content": part.text}
        case Reasoning():
            return {"reasoning_content": part.text, "reasoning": part.text}
        case CallStart():
            opening: answers.ToolCallDelta = {
                "index": part.index,
                "id": part.id,
                "type": "function",
                "function": {"name": part.name, "arguments": ""},
            }
            return {"tool_calls": [opening]}
        case Arguments():
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.fragment}}]}


def _call(call: Call) -> answers.MessageToolCall:
    function: answers.CalledFunction = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
