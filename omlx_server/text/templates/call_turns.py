"""Rewrites turns with tool calls that a chat template does not show."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.text.templates import trials
from omlx_server.text.templates.messages import Message, join_messages
from omlx_server.text.templates.trials import Render, try_render


@dataclass(frozen=True, slots=True)
class CallTurns:
    """The turns that a template takes. `many`: several calls in a message. `interrupted`: a user's
    message behind a tool's."""

    many: bool = True
    interrupted: bool = True

    @classmethod
    def of(cls, render: Render) -> "CallTurns":
        result = trials.result(0)
        if "c0ffee0" not in try_render(render, [*trials.CALL_TURNS, result]):
            return cls()
        two = {**trials.CALL_TURNS[1], "tool_calls": [trials.call(0), trials.call(1)]}
        return cls(
            many="c0ffee1" in try_render(render, [trials.USER, two, result, trials.result(1)]),
            interrupted=try_render(render, [*trials.CALL_TURNS, result, trials.USER]) != "",
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
