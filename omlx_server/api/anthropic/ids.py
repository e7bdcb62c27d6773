"""Converts the ids of tool calls between Anthropic's form (`toolu_...`) and the one used inside
this server. Pure.

A chat template can insist on a form of its own (Mistral's take nine letters and digits), so the
prefix is added and removed here, at the edge.
"""

_CALL = "toolu_"
_PLAIN = "call_"


def tool_use_id(call_id: str) -> str:
    """The id that clients see for a call: `toolu_` takes the place of `call_`."""
    return _CALL + call_id.removeprefix(_PLAIN)


def call_id(tool_use_id: str) -> str:
    """The id that the chat template sees, made from whatever id a client has sent."""
    return tool_use_id.removeprefix(_CALL) or tool_use_id
