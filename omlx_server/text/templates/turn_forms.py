"""Messages that are rendered to see what a chat template does with them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.overflow import front_length
from omlx_server.text.templates.messages import Message, join_messages, join_texts

Render = Callable[..., str]
"""Renders messages with a chat template, and `tools` if it is given them."""
_WAS_SYSTEM = "said_for_the_system"  # a mark that `_join_former_systems` takes away again
_LATE_FORM = "<system>\n{}\n</system>"


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


@dataclass(frozen=True, slots=True)
class CallTurns:
    """The turns that a template takes. `many`: several calls in a message. `interrupted`: a user's
    message behind a tool's."""

    many: bool = True
    interrupted: bool = True

    @classmethod
    def of(cls, render: Render) -> "CallTurns":
        seen = result(0)
        if "c0ffee0" not in try_render(render, [*CALL_TURNS, seen]):
            return cls()
        two = {**CALL_TURNS[1], "tool_calls": [call(0), call(1)]}
        return cls(
            many="c0ffee1" in try_render(render, [USER, two, seen, result(1)]),
            interrupted=try_render(render, [*CALL_TURNS, seen, USER]) != "",
        )

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages; several calls become turns of one, and the user's words part of a
        result, where the template needs it."""
        divided = list(messages) if self.many else _split_calls(messages)
        return divided if self.interrupted else _move_words_into_results(divided)


def _split_calls(messages: Sequence[Message]) -> list[Message]:
    turns: list[list[Message]] = []
    for message in messages:
        if turns and message["role"] == "tool":
            turns[-1].append(message)
        else:
            turns.append([message])
    return [message for turn in turns for message in _split_turn(turn)]


def _split_turn(turn: Sequence[Message]) -> list[Message]:
    calls = turn[0].get("tool_calls")
    if not isinstance(calls, list) or len(calls) < 2:
        return list(turn)
    results, divided = list(turn[1:]), list[Message]()
    for position, call in enumerate(calls):
        call_turn = {**turn[0], "tool_calls": [call], **({"content": ""} if position else {})}
        call_results = [r for r in results if r.get("tool_call_id") == call.get("id")]
        divided += [call_turn, *call_results]
        results = [r for r in results if r not in call_results]
    return divided + results


def _move_words_into_results(messages: Sequence[Message]) -> list[Message]:
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1]["role"] == "tool" and message["role"] == "user":
            turns[-1] = {**join_messages([turns[-1], message], "\n\n"), "role": "tool"}
        else:
            turns.append(message)
    return turns


@dataclass(frozen=True, slots=True)
class SystemTurns:
    """Whether a template shows a system message in front (`first`), several there (`many`), and
    later ones (`late`)."""

    first: bool = True
    many: bool = True
    late: bool = True

    @classmethod
    def of(cls, render: Render, besides: str = "") -> "SystemTurns":
        """Try each place once. `besides`: what else a rendering must show, such as the name of a
        tool."""
        return cls(
            first=_shows(render, besides, "system", "user"),
            many=_shows(render, besides, "system", "system", "user"),
            late=_shows(render, besides, "system", "user", "assistant", "user", "system", "user"),
        )

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages; system messages that would be lost become one, or a user's."""
        count = front_length(messages)
        front, others = list(messages[:count]), list(messages[count:])
        if len(front) > 1 and not self.many:
            front = [{**front[0], "content": join_texts("\n\n", *(m["content"] for m in front))}]
        if not self.first:
            front = [_as_user_message(message) for message in front]
        if not self.late:
            others = [_as_user_message(message, _LATE_FORM) for message in others]
        if self.first and self.late:
            return front + others
        return _join_former_systems(front + others)


def _shows(render: Render, besides: str, *roles: str) -> bool:
    words = [f"c0ffee{position}" for position in range(len(roles))]
    turns = [{"role": r, "content": word} for r, word in zip(roles, words, strict=True)]
    rendering = try_render(render, turns)
    return all(word in rendering for word in [*words, besides])


def _as_user_message(message: Message, form: str = "{}") -> Message:
    if message["role"] != "system":
        return message
    return {"role": "user", "content": form.format(message["content"]), _WAS_SYSTEM: True}


def _join_former_systems(messages: Sequence[Message]) -> list[Message]:
    """Join each former system message with the user's messages around it."""
    result: list[Message] = []
    for _, group in groupby(messages, itemgetter("role")):
        same_role = list(group)
        flags = [_WAS_SYSTEM in message for message in same_role]
        first = flags.index(True) if any(flags) else len(flags)
        # The message before the first of them, and all that follow, become one.
        start = max(first - 1, 0)
        result += [*same_role[:start], join_messages(same_role[start:], "\n\n")]
    return [{name: m[name] for name in m if name != _WAS_SYSTEM} for m in result]
