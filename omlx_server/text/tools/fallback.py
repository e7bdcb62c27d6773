"""Tools for templates that know none: told in the system message, in the JSON family's form. Pure.

Nothing of the client's values is changed in place.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, meta

from omlx_server.text.templates.sandbox import Sandbox
from omlx_server.text.templates.system_turns import SystemTurns

Message = dict[str, Any]

_BLOCK = """# Tools

You may call functions to help with the request. The functions, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, answer with its name and its arguments as JSON within <tool_call></tool_call>:
<tool_call>
{{"name": "<function name>", "arguments": {{<arguments>}}}}
</tool_call>
Write one such block for each call. The results come back within <tool_response></tool_response>. \
When no function is needed, answer in plain text."""


def supports_tools(template_source: str) -> bool:
    """Whether the template reads `tools`. A faulty template supports nothing."""
    try:
        tree = Sandbox(max_chars=0, seconds=0).parse(template_source)
    except TemplateError:
        return False
    return "tools" in meta.find_undeclared_variables(tree)


def told(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    shows_tools: bool,
    systems: SystemTurns,
) -> list[Message]:
    """Messages as a template can take them. For one that shows no tools they are told, and earlier
    calls shown, as plain text."""
    if not shows_tools and (tools or any(map(_is_of_calls, messages))):
        messages = with_tools(messages, tools)
    return systems.fitted([dict(message) for message in messages])


def _is_of_calls(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """The messages with the tools in the first system message, and earlier calls as plain text."""
    turns = _merged(messages)
    return _with_block(turns, _block(tools)) if tools else turns


def _block(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = (json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _BLOCK.format(tools="\n".join(lines))


def _with_block(turns: list[Message], block: str) -> list[Message]:
    if turns and turns[0].get("role") in ("system", "developer"):
        return [{**turns[0], "content": _joined(turns[0].get("content"), block)}, *turns[1:]]
    return [{"role": "system", "content": block}, *turns]


def _plain_turn(message: Mapping[str, Any]) -> Message:
    if message.get("role") == "tool":
        return {"role": "user", "content": _response(message.get("content"))}
    calls = message.get("tool_calls")
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list | tuple) or not calls or message.get("role") != "assistant":
        return plain
    written = "\n".join(map(_written, calls))
    return {**plain, "content": _joined(message.get("content"), written, gap="\n")}


def _written(call: Any) -> str:
    """As the block asks for it. Arguments are JSON text already; odd ones are left to speak."""
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text}}}\n</tool_call>'


def _response(content: Any) -> str:
    parts = content if isinstance(content, list | tuple) else [{"text": content}]
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    told = "".join(text for text in texts if isinstance(text, str))
    return f"<tool_response>\n{told}\n</tool_response>"


def _merged(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Plain turns. A tool's response joins a neighbour that is the user's: many templates want
    the roles to alternate."""
    result: list[Message] = []
    texts: list[str] = []  # of the last turn, whose content they become
    after_response = False
    for message in messages:
        turn = _plain_turn(message)
        content = turn.get("content")
        if not (after_response and texts and turn.get("role") == "user"):
            _settle(result, texts)
            result.append(turn)
            texts = [content] if isinstance(content, str) else []
        elif not content or isinstance(content, str):
            result[-1] = turn
            texts += [content] if content else []
        else:
            joined = _joined(content, "\n".join(texts), after=False, gap="\n")
            result[-1], texts = {**turn, "content": joined}, []
        after_response = message.get("role") == "tool"
    _settle(result, texts)
    return result


def _settle(turns: list[Message], texts: Sequence[str]) -> None:
    """Once for each turn: what grows with every message would be copied as often."""
    if texts:
        turns[-1] = {**turns[-1], "content": "\n".join(texts)}


def _joined(content: Any, text: str, *, after: bool = True, gap: str = "\n\n") -> Any:
    """`text` after or before a message's content, which may be a list of parts."""
    if isinstance(content, list | tuple) and content:
        parts: list[Any] = [{"type": "text", "text": gap + text if after else text + gap}]
        return [*content, *parts] if after else [*parts, *content]
    if not content:
        return text
    return f"{content}{gap}{text}" if after else f"{text}{gap}{content}"
