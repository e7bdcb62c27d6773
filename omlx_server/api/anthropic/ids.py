"""Convert ids of tool calls between Anthropic's form (`toolu_...`) and the server's own."""

_CALL = "toolu_"
_PLAIN = "call_"


def tool_use_id(call_id: str) -> str:
    return _CALL + call_id.removeprefix(_PLAIN)


def call_id(tool_use_id: str) -> str:
    return tool_use_id.removeprefix(_CALL) or tool_use_id
