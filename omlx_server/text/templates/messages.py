"""Brings messages of any API into the form that chat templates expect. Changes nothing in place."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_REASONING_FIELDS = ("reasoning_content", "reasoning")
_FIELDS = ("name", "tool_call_id", "reasoning_content", "reasoning", "tool_calls")
# Claude Code puts such a text first. It says nothing to the model and changes with every request:
# nothing that follows it would be found in the prefix cache.
_BILLING_HEADER = "x-anthropic-billing-header"


def neutral_message(role: str, texts: Iterable[str], fields: Mapping[str, Any]) -> Message:
    """Return a message with its text as one string and only known `fields`. The role "developer"
    becomes "system"."""
    is_system = role in ("system", "developer")
    content = "".join(without_billing(texts) if is_system else texts)
    kept_fields = {name: fields[name] for name in _FIELDS if fields.get(name) not in (None, [])}
    return {"role": "system" if is_system else role, "content": content, **kept_fields}


def without_billing(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if not text.startswith(_BILLING_HEADER)]


def without_empty_systems(messages: Sequence[Message]) -> list[Message]:
    """Drop empty system messages, but not an only one in front: it keeps a template from adding
    a persona."""
    others = [m for m in messages if m["role"] != "system" or m["content"]]
    has_system_in_front = messages[0]["role"] == "system" if messages else False
    if has_system_in_front and (not others or others[0]["role"] != "system"):
        return [messages[0], *others]
    return others


def join_messages(run: Sequence[Message], gap: str) -> Message:
    """Join neighbouring messages; `gap` stands between their texts."""
    if len(run) == 1:
        return run[0]
    fields = {name: value for message in run for name, value in message.items()}
    return {**fields, "content": join_texts(gap, *(message["content"] for message in run))}


def join_texts(gap: str, *texts: str) -> str:
    return gap.join(filter(None, texts))


def with_reasoning(message: Mapping[str, Any]) -> Message:
    """Return a copy in which thoughts have every name that a template may read."""
    reasoning = next((message[name] for name in _REASONING_FIELDS if name in message), None)
    if reasoning is None:
        return dict(message)
    # As transformers does: gpt-oss templates read `thinking`, all others the long name.
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def with_arguments(message: Message, form: Callable[[Any], Any]) -> Message:
    """Return the message with the arguments of its calls in the form `as_object` or `as_text`."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_call_with_arguments(form, call) for call in calls]}


def _call_with_arguments(form: Callable[[Any], Any], call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = form(function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def as_object(arguments: Any) -> Mapping[str, Any]:
    """Return arguments as an object: `{}` for none, else {"arguments": value} for other values."""
    value = _parse_json(arguments) if isinstance(arguments, str) else arguments
    if isinstance(value, Mapping):
        return value
    return {} if value in (None, "") else {"arguments": arguments}


def as_text(arguments: Any) -> str:
    """Return arguments as text, the client's own where it sent one."""
    if isinstance(arguments, str) and arguments.strip():
        return arguments
    return json.dumps(as_object(arguments), ensure_ascii=False)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
