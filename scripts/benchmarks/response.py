"""The pieces of one streamed response, and what they say once it is over."""

from dataclasses import dataclass, field
from typing import Any

from omlx_server.cli.bench.target import Piece, Stream, events
from scripts.benchmarks.answer import Answer
from scripts.benchmarks.workload import Prompt


class BadResponse(Exception):
    """A server answered, but not what it was asked."""


@dataclass(slots=True)
class Response:
    """Pieces as they came: (time, bytes)."""

    prompt: Prompt
    sent: float = 0.0
    pieces: list[Piece] = field(default_factory=list)

    def answer(self) -> Answer:
        """Raises BadResponse for an error in it, or when another prompt than ours was read."""
        times: list[float] = []
        text = ""
        finished = 0.0
        usage: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0}
        for at, event in events(self.pieces):
            if "error" in event:
                raise BadResponse(f"error event: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                if content := choice.get("text") or choice.get("delta", {}).get("content"):
                    times.append(at)
                    text += content
                elif choice.get("finish_reason"):
                    finished = at
        if usage["prompt_tokens"] != len(self.prompt.tokens):
            read, sent = usage["prompt_tokens"], len(self.prompt.tokens)
            raise BadResponse(f"the prompt has {sent} tokens, the server read {read}")
        # An answer of control tokens alone has no text; its end is all there is to see.
        stream = Stream(self.sent, tuple(times or [finished]), usage["completion_tokens"])
        details = usage.get("prompt_tokens_details") or {}
        return Answer(self.prompt, stream, text, details.get("cached_tokens"))
