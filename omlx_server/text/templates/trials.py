"""Messages that are rendered to see what a chat template does with them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.templates.messages import Message

Render = Callable[..., str]
"""Renders messages with a chat template, and `tools` if it is given them."""


def try_render(render: Render, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a rendering; "" where the template refuses the messages."""
    try:
        return render(list(messages))
    except BadRequest:
        return ""


def call(number: int) -> dict[str, Any]:
    function = {"name": "look", "arguments": {"at": f"c0ffee{number}"}}
    return {"type": "function", "id": f"lookup00{number}", "function": function}


def result(number: int) -> Message:
    called = {"name": "look", "tool_call_id": f"lookup00{number}"}
    return {"role": "tool", "content": "seen", **called}


USER: Message = {"role": "user", "content": "Look."}
_CALL: Message = {"role": "assistant", "content": "", "tool_calls": [call(0)]}
CALL_TURNS: Sequence[Message] = (USER, _CALL)
