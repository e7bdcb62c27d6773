"""An answer as Anthropic's events, part by part. Owned by one answer, on the asyncio thread.

message_start
  (content_block_start content_block_delta* content_block_stop)*   one block is open at a time
message_delta   why it ended, and all counts
message_stop
"""

from dataclasses import dataclass

from omlx_server.api.anthropic import shapes
from omlx_server.api.anthropic.shapes import Json
from omlx_server.api.choices import Usage
from omlx_server.text.parts import Arguments, CallStart, Part, Reasoning, Text


@dataclass(frozen=True, slots=True)
class Ending:
    """`finish` as in a chat; `stopped`: the stop string that was met; `full`: the context had less
    room than the answer was allowed."""

    finish: str
    stopped: str | None = None
    full: bool = False

    def reason(self, *, called: bool) -> str:
        if self.stopped is not None:
            return "stop_sequence"
        if self.finish == "length":
            return "model_context_window_exceeded" if self.full else "max_tokens"
        return "tool_use" if called else "end_turn"


class MessageEvents:
    """Call `start`, then `add` for each part, then `end`. `usage` is read when events tell it."""

    def __init__(self, id: str, model: str, usage: Usage) -> None:
        self._id = id
        self._model = model
        self._usage = usage
        self._index = -1
        self._open = ""  # the open block's type
        self._called = False

    def start(self) -> list[Json]:
        message = shapes.message(self._id, self._model, self._usage)
        return [{"type": "message_start", "message": message}]

    def add(self, part: Part) -> list[Json]:
        match part:
            case Text(text):
                return self._grown(shapes.text_block(), text)
            case Reasoning(text):
                return self._grown(shapes.thinking_block(), text)
            case CallStart():
                self._called = True
                return self._begun(shapes.tool_use_block(part))
            case Arguments(fragment=fragment):
                return [self._delta("input_json_delta", "partial_json", fragment)]

    def end(self, ending: Ending) -> list[Json]:
        delta = {
            "container": None,
            "stop_details": None,
            "stop_reason": ending.reason(called=self._called),
            "stop_sequence": ending.stopped,
        }
        usage = shapes.counts(self._usage)
        return [
            *self._closed(),
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def _grown(self, block: Json, text: str) -> list[Json]:
        """More of the open block, if it is of this one's type, else of this one."""
        if not text:
            return []
        kind = block["type"]
        begun = [] if self._open == kind else self._begun(block)
        return [*begun, self._delta(f"{kind}_delta", kind, text)]

    def _begun(self, block: Json) -> list[Json]:
        closed = self._closed()
        self._index += 1
        self._open = block["type"]
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*closed, start]

    def _closed(self) -> list[Json]:
        if not self._open:
            return []
        signed = self._open == "thinking"
        signature = self._delta("signature_delta", "signature", shapes.SIGNATURE)
        self._open = ""
        stop = {"type": "content_block_stop", "index": self._index}
        return [signature, stop] if signed else [stop]

    def _delta(self, kind: str, field: str, value: str) -> Json:
        delta = {"type": kind, field: value}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
