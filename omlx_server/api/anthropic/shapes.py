"""The JSON of messages, whole and as events, as the anthropic package's types want it. Pure."""

import orjson

from omlx_server.api.anthropic import answers
from omlx_server.api.anthropic.ids import tool_use_id
from omlx_server.api.chat.choices import Usage
from omlx_server.api.http.anthropic_errors import envelope
from omlx_server.errors import OmlxError
from omlx_server.text.parts import CallStart

# It stands where Anthropic signs what was thought. Nothing is signed here, but some clients leave
# thinking out of their next request when this is empty, and the cached prefix would end there.
SIGNATURE = "unsigned"


def sse(event: answers.MessageEvent) -> bytes:
    """One server-sent event, named as its type: clients skip events without a name."""
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(event))


def error_event(error: OmlxError, request_id: str | None) -> bytes:
    return sse(envelope(error, request_id))


PING = sse({"type": "ping"})


def message(id: str, model: str, usage: Usage) -> answers.AssistantTurn:
    """With no content yet, and not ended."""
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "container": None,
        "stop_details": None,
        "stop_reason": None,
        "stop_sequence": None,
        # What follows the counts is told once. Nobody pays for a cache, and nothing leaves the
        # machine.
        "usage": {
            **counts(usage),
            "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
            "inference_geo": None,
            "service_tier": "standard",
        },
    }


def counts(usage: Usage) -> answers.CountsOfMessage:
    """`input_tokens` are those that were not cached. What of them is stored for later costs nobody
    anything, so nothing counts as the creation of a cache. No tool runs on a server."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "server_tool_use": None,
    }


def text_block() -> answers.TextBlock:
    return {"type": "text", "text": "", "citations": None}


def thinking_block() -> answers.ThinkingBlock:
    return {"type": "thinking", "thinking": "", "signature": ""}


def tool_use_block(call: CallStart) -> answers.ToolUseBlock:
    """The model itself calls, not a program that it has written."""
    return {
        "type": "tool_use",
        "id": tool_use_id(call.id),
        "name": call.name,
        "caller": {"type": "direct"},
        "input": {},
    }
