"""Rewrites turns with tool calls that a chat template does not show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.templates.messages import Message, as_one
from omlx_server.text.templates.system_turns import Render


@dataclass(frozen=True, slots=True)
class CallTurns:
    """Whether a template takes several calls in a message (`many`), and a user's message behind
    a tool's (`interrupted`)."""

    many: bool = True
    interrupted: bool = True

    @classmethod
    def of(cls, render: Render) -> "CallTurns":
        if "c0ffee0" not in _rendered(render, *_CALLED):
            return cls()
        two = {**_CALLED[1], "tool_calls": [_call(0), _call(1)]}
        return cls(
            many="c0ffee1" in _rendered(render, _USER, two, _result(0), _result(1)),
            interrupted=_rendered(render, *_CALLED, _USER) != "",
        )

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages; several calls become turns of one, and the user's words part of a
        result, where the template needs it."""
        divided = list(messages) if self.many else _one_by_one(messages)
        return divided if self.interrupted else _in_results(divided)


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    turns: list[list[Message]] = []
    for message in messages:
        if turns and message["role"] == "tool":
            turns[-1].append(message)
        else:
            turns.append([message])
    return [told for turn in turns for told in _divided(turn)]


def _divided(turn: Sequence[Message]) -> list[Message]:
    calls = turn[0].get("tool_calls")
    if not isinstance(calls, list) or len(calls) < 2:
        return list(turn)
    results, divided = list(turn[1:]), list[Message]()
    for number, call in enumerate(calls):
        call_turn = {**turn[0], "tool_calls": [call], **({"content": ""} if number else {})}
        call_results = [r for r in results if r.get("tool_call_id") == call.get("id")]
        divided += [call_turn, *call_results]
        results = [r for r in results if r not in call_results]
    return divided + results


def _in_results(messages: Sequence[Message]) -> list[Message]:
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1]["role"] == "tool" and message["role"] == "user":
            turns[-1] = {**as_one([turns[-1], message], "\n\n"), "role": "tool"}
        else:
            turns.append(message)
    return turns


def _rendered(render: Render, *messages: Mapping[str, Any]) -> str:
    try:
        return render(list(messages))
    except BadRequest:
        return ""


def _call(number: int) -> dict[str, Any]:
    function = {"name": "look", "arguments": {"at": f"c0ffee{number}"}}
    return {"type": "function", "id": f"lookup00{number}", "function": function}


def _result(number: int) -> Message:
    called = {"name": "look", "tool_call_id": f"lookup00{number}"}
    return {"role": "tool", "content": "seen", **called}


_USER: Message = {"role": "user", "content": "Look."}
_CALLED: Sequence[Message] = (
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_call(0)]},
    _result(0),
)
