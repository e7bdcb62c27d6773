"""Names of tool calls as Anthropic's API has them, made of the names that calls have here. Pure.

A chat template can insist on a form of its own (Mistral's take nine letters and digits), so the
prefix is put on and taken off at the edge.
"""

_CALL = "toolu_"
_PLAIN = "call_"


def tool_use_id(call_id: str) -> str:
    """What clients see."""
    return _CALL + call_id.removeprefix(_PLAIN)


def call_id(tool_use_id: str) -> str:
    """What the chat template sees, of any name that a client may send."""
    return tool_use_id.removeprefix(_CALL) or tool_use_id
