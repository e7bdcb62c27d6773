"""Rewrites turns with tool calls that a chat template does not show."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.text.templates.messages import Message, as_one
from omlx_server.text.templates.trials import CALLED, USER, Render, call, rendered, result


@dataclass(frozen=True, slots=True)
class CallTurns:
    """Whether a template takes several calls in a message (`many`), and a user's message behind
    a tool's (`interrupted`)."""

    many: bool = True
    interrupted: bool = True

    @classmethod
    def of(cls, render: Render) -> "CallTurns":
        if "c0ffee0" not in rendered(render, [*CALLED, result(0)]):
            return cls()
        two = {**CALLED[1], "tool_calls": [call(0), call(1)]}
        return cls(
            many="c0ffee1" in rendered(render, [USER, two, result(0), result(1)]),
            interrupted=rendered(render, [*CALLED, result(0), USER]) != "",
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
    for number, one in enumerate(calls):
        call_turn = {**turn[0], "tool_calls": [one], **({"content": ""} if number else {})}
        call_results = [r for r in results if r.get("tool_call_id") == one.get("id")]
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
