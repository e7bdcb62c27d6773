"""Tells tools to models whose templates know none, in the system message, as `JSON_TOOLS`."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from jinja2 import TemplateError, meta

from omlx_server.text.templates.messages import Message, join_messages, join_texts
from omlx_server.text.templates.sandbox import Sandbox

_SYSTEM_TEXT = """# Tools

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
    """Return whether the template reads `tools` or `functions`; False for a faulty one."""
    try:
        tree = Sandbox(max_chars=0, seconds=0).parse(template_source)
    except TemplateError:
        return False
    return not meta.find_undeclared_variables(tree).isdisjoint(("tools", "functions"))


def shows_tools(template_source: str) -> bool:
    """Return what `supports_tools` does; False, too, for a template that is nested too deeply."""
    try:
        return supports_tools(template_source)
    except RecursionError:
        return False


def has_calls_or_results(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def tools_as_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with tools in the first system message, and calls as plain text.
    Results, and the user's words behind them, become one user turn."""
    turns_to_join: list[list[Message]] = []
    for before, message in pairwise([{"role": ""}, *messages]):
        turn = _as_plain_text(message)
        if before["role"] == "tool" and turn["role"] == "user":
            turns_to_join[-1].append(turn)
        else:
            turns_to_join.append([turn])
    turns = [join_messages(run, "\n") for run in turns_to_join]
    if not tools:
        return turns
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _SYSTEM_TEXT.format(tools=lines)
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": join_texts("\n\n", turns[0]["content"], text)}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _as_plain_text(message: Message) -> Message:
    if message["role"] == "tool":
        response = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": response}
    calls = message.get("tool_calls")
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list) or not calls or message["role"] != "assistant":
        return plain
    return {**plain, "content": join_texts("\n", message["content"], *map(_call_text, calls))}


def _call_text(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text}}}\n</tool_call>'
