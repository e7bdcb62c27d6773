"""Turn the parts of an answer into Anthropic's events, and those into one whole message.

message_start
  (content_block_start content_block_delta* content_block_stop)*   one block is open at a time
message_delta   the stop reason and all token counts
message_stop
"""

from collections.abc import Iterable
from typing import Any, cast

import orjson

from omlx_server.api.anthropic import answers
from omlx_server.api.anthropic.turns import tool_use_id
from omlx_server.api.chat.choices import TokenCounts
from omlx_server.api.http import sse
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought

# The signature of a thinking block. Some clients drop a block with an empty one from their next
# request, and the cached prefix would end there.
SIGNATURE = "unsigned"
# The keep-alive of this API is an event, not a comment; Anthropic calls it ping.
PING = sse.named_events({"type": "ping"})


class MessageEvents:
    """Makes the events of one answer: `start`, `add` for each part, `end`."""

    def __init__(self, id: str, model: str, usage: TokenCounts) -> None:
        self._id = id
        self._model = model
        self._usage = usage
        self._index = -1
        self._open_type = ""  # the type of the open block, if any
        self._has_calls = False

    def start(self) -> list[answers.MessageEvent]:
        message: answers.AssistantTurn = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "container": None,
            "stop_details": None,
            "stop_reason": None,
            "stop_sequence": None,
            # The fields after the counts are in this event only: message_delta has just the counts.
            "usage": {
                **_token_counts(self._usage),
                "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
                "inference_geo": None,
                "service_tier": "standard",
            },
        }
        return [{"type": "message_start", "message": message}]

    def add(self, part: Part) -> list[answers.MessageEvent]:
        match part:
            case Text("") | Thought(""):
                return []
            case Text(text):
                block: answers.TextBlock = {"type": "text", "text": "", "citations": None}
                return self._extend_block(block, {"type": "text_delta", "text": text})
            case Thought(text):
                blank: answers.ThinkingBlock = {"type": "thinking", "thinking": "", "signature": ""}
                return self._extend_block(blank, {"type": "thinking_delta", "thinking": text})
            case CallStart():
                self._has_calls = True
                call: answers.ToolUseBlock = {
                    "type": "tool_use",
                    "id": tool_use_id(part.id),
                    "name": part.name,
                    "caller": {"type": "direct"},
                    "input": {},
                }
                return self._begin_block(call)
            case Arguments(fragment=fragment):
                return [self._block_delta({"type": "input_json_delta", "partial_json": fragment})]

    def end(self, ending: answers.Ending) -> list[answers.MessageEvent]:
        delta: answers.MessageEnd = {
            "container": None,
            "stop_details": None,
            "stop_reason": ending.reason(called=self._has_calls),
            "stop_sequence": ending.stopped,
        }
        return [
            *self._close_block(),
            {"type": "message_delta", "delta": delta, "usage": _token_counts(self._usage)},
            {"type": "message_stop"},
        ]

    def _extend_block(
        self, block: answers.TextBlock | answers.ThinkingBlock, delta: answers.ContentDelta
    ) -> list[answers.MessageEvent]:
        """Add `delta` to the open block, or to a new `block` if the open one has another type."""
        events = [] if self._open_type == block["type"] else self._begin_block(block)
        return [*events, self._block_delta(delta)]

    def _begin_block(self, block: answers.ContentBlock) -> list[answers.MessageEvent]:
        """Begin a block; the open one ends."""
        events = self._close_block()
        self._index += 1
        self._open_type = block["type"]
        index = self._index
        return [*events, {"type": "content_block_start", "index": index, "content_block": block}]

    def _close_block(self) -> list[answers.MessageEvent]:
        if not self._open_type:
            return []
        events: list[answers.MessageEvent] = []
        if self._open_type == "thinking":
            events.append(self._block_delta({"type": "signature_delta", "signature": SIGNATURE}))
        self._open_type = ""
        return [*events, {"type": "content_block_stop", "index": self._index}]

    def _block_delta(self, delta: answers.ContentDelta) -> answers.BlockDelta:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _token_counts(usage: TokenCounts) -> answers.CountsOfMessage:
    """Return Anthropic's token counts. Storing blocks costs nothing, so cache creation is 0."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "server_tool_use": None,
    }


def assemble_message(events: Iterable[answers.MessageEvent]) -> answers.AssistantTurn:
    """Return the whole message, put together as a client does."""
    start, *later_events = events
    assert start["type"] == "message_start"
    message = start["message"]
    blocks: list[dict[str, Any]] = []
    for event in later_events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            for name, added in event["delta"].items():
                if name != "type":
                    blocks[-1][name] = blocks[-1].get(name, "") + added
        elif event["type"] == "content_block_stop":
            # The JSON text is passed on unparsed: orjson would refuse valid JSON such as 1e999.
            if arguments := blocks[-1].pop("partial_json", ""):
                blocks[-1]["input"] = orjson.Fragment(arguments)
        elif event["type"] == "message_delta":
            usage = message["usage"]
            message = {**message, **event["delta"], "usage": {**usage, **event["usage"]}}
    return {**message, "content": cast(list[answers.ContentBlock], blocks)}
