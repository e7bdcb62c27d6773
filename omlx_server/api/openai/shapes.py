"""The JSON of chat completions, whole and in chunks, as the openai package's types want it."""

from collections.abc import Iterable
from typing import Any

from omlx_server.api.choices import ChoiceDelta, LoggedToken, Usage
from omlx_server.text.answer import TokenEntry


def usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
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
    """The parts that all chunks of one response share."""

    def __init__(self, id: str, created: int, model: str, *, with_logprobs: bool) -> None:
        self._common = {"id": id, "created": created, "model": model}
        self._with_logprobs = with_logprobs

    def completion(self, choices: list[dict[str, Any]], counts: Usage) -> dict[str, Any]:
        return {
            **self._common,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(counts),
            "service_tier": None,
            "system_fingerprint": None,
        }

    def choice(
        self, index: int, text: str, tokens: list[LoggedToken], finish: str | None
    ) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": logprobs(tokens) if self._with_logprobs else None,
            "finish_reason": finish,
        }

    def opening(self, index: int) -> dict[str, Any]:
        """The first chunk of a choice: the role, no text."""
        return self._chunk([self._chunk_choice(index, {"role": "assistant", "content": ""})])

    def delta(self, delta: ChoiceDelta) -> list[dict[str, Any]]:
        """A chunk with the text, if there is any, and a chunk with the end, if it ended."""
        chunks = []
        if delta.text or delta.tokens:
            choice = self._chunk_choice(delta.index, {"content": delta.text})
            if self._with_logprobs:
                choice["logprobs"] = logprobs(delta.tokens)
            chunks.append(self._chunk([choice]))
        if delta.finish:
            chunks.append(self._chunk([self._chunk_choice(delta.index, {}, delta.finish.value)]))
        return chunks

    def last(self, counts: Usage) -> dict[str, Any]:
        """The chunk after all others, with the usage."""
        return {**self._chunk([]), "usage": usage(counts)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._common, "object": "chat.completion.chunk", "choices": choices}

    def _chunk_choice(
        self, index: int, delta: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
