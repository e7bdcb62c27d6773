"""An answer as Anthropic's events, part by part. Owned by one answer, on the asyncio thread.

message_start
  (content_block_start content_block_delta* content_block_stop)*   one block is open at a time
message_delta   why it ended, and all counts
message_stop
"""

from dataclasses import dataclass

from omlx_server.api.anthropic import answers, shapes
from omlx_server.api.chat.choices import Usage
from omlx_server.api.chat.finish import Finish
from omlx_server.text.parts import Arguments, CallStart, Part, Reasoning, Text


@dataclass(frozen=True, slots=True)
class Ending:
    """`finish` as in a chat; `stopped`: the stop string that was met; `full`: the context had less
    room than the answer was allowed."""

    finish: Finish
    stopped: str | None = None
    full: bool = False

    def reason(self, *, called: bool) -> answers.StopReason:
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

    def start(self) -> list[answers.MessageEvent]:
        message = shapes.message(self._id, self._model, self._usage)
        return [{"type": "message_start", "message": message}]

    def add(self, part: Part) -> list[answers.MessageEvent]:
        match part:
            case Text("") | Reasoning(""):
                return []
            case Text(text):
                return self._grown(shapes.text_block(), {"type": "text_delta", "text": text})
            case Reasoning(text):
                delta: answers.ContentDelta = {"type": "thinking_delta", "thinking": text}
                return self._grown(shapes.thinking_block(), delta)
            case CallStart():
                self._called = True
                return self._begun(shapes.tool_use_block(part))
            case Arguments(fragment=fragment):
                return [self._delta({"type": "input_json_delta", "partial_json": fragment})]

    def end(self, ending: Ending) -> list[answers.MessageEvent]:
        delta: answers.MessageEnd = {
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

    def _grown(
        self, block: answers.TextBlock | answers.ThinkingBlock, delta: answers.ContentDelta
    ) -> list[answers.MessageEvent]:
        """More of the open block, if it is of this one's type, else of this one."""
        begun = [] if self._open == block["type"] else self._begun(block)
        return [*begun, self._delta(delta)]

    def _begun(self, block: answers.ContentBlock) -> list[answers.MessageEvent]:
        closed = self._closed()
        self._index += 1
        self._open = block["type"]
        return [
            *closed,
            {"type": "content_block_start", "index": self._index, "content_block": block},
        ]

    def _closed(self) -> list[answers.MessageEvent]:
        if not self._open:
            return []
        events: list[answers.MessageEvent] = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": shapes.SIGNATURE}))
        self._open = ""
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: answers.ContentDelta) -> answers.BlockDelta:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
