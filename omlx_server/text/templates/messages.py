"""Brings messages into the form that chat templates expect: plain strings, whatever the API. Pure.

Nothing of the client's values is changed in place.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_REASONING_FIELDS = ("reasoning_content", "reasoning")
_FIELDS = ("name", "tool_call_id", "reasoning_content", "reasoning", "tool_calls")
# Claude Code puts such a text first. It says nothing to the model and changes with every request:
# nothing that follows it would be found in the prefix cache.
_BILLING = "x-anthropic-billing-header"


def neutral_message(role: str, texts: Iterable[str], fields: Mapping[str, Any]) -> Message:
    """A message of any API with its text as one string, and those of its `fields` that templates
    know. The role "developer" becomes "system"."""
    is_system = role in ("system", "developer")
    content = "".join(without_billing(texts) if is_system else texts)
    known = {name: fields[name] for name in _FIELDS if fields.get(name) not in (None, [])}
    return {"role": "system" if is_system else role, "content": content, **known}


def without_billing(texts: Iterable[str]) -> list[str]:
    """The texts of a system message without Claude Code's billing header, which says nothing to a
    model."""
    return [text for text in texts if not text.startswith(_BILLING)]


def without_empty_systems(messages: Sequence[Message]) -> list[Message]:
    """The messages without empty system messages; all of them where no other message is left."""
    told = [m for m in messages if m["role"] != "system" or m["content"]]
    return told or list(messages)


def as_one(run: Sequence[Message], gap: str) -> Message:
    """Neighbouring messages as one, because many templates want the roles to alternate. `gap`
    stands between their texts; an empty text leaves no gap."""
    if len(run) == 1:
        return run[0]
    fields = {name: value for message in run for name, value in message.items()}
    return {**fields, "content": joined(gap, *(message["content"] for message in run))}


def joined(gap: str, *texts: str) -> str:
    return gap.join(filter(None, texts))


def with_reasoning(message: Mapping[str, Any]) -> Message:
    """A copy in which an assistant's thoughts have every name that a template may look for."""
    reasoning = next((message[name] for name in _REASONING_FIELDS if name in message), None)
    if reasoning is None:
        return dict(message)
    # As transformers does: gpt-oss templates read `thinking`, all others the long name.
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def with_parsed_arguments(message: Message) -> Message:
    """The message with the arguments of its tool calls as objects: OpenAI sends them as JSON text.

    Most templates write them with `tojson`, which would quote a text once more.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_parsed_call(call) for call in calls]}


def _parsed_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        parsed = json.loads(function["arguments"])
    except ValueError:
        return call
    if not isinstance(parsed, dict):
        return call
    return {**call, "function": {**function, "arguments": parsed}}
