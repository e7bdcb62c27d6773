"""Fits system messages to what a chat template shows. One that would be refused or lost becomes
a user's in the same place, so that the prefix stays cached."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from omlx_server.text.templates.messages import Message, as_one, joined
from omlx_server.text.templates.trials import Render, rendered
from omlx_server.text.turns import front_of


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
        count = front_of(messages)
        front, others = list(messages[:count]), list(messages[count:])
        if len(front) > 1 and not self.many:
            front = [{**front[0], "content": joined("\n\n", *(m["content"] for m in front))}]
        if not self.first:
            front = [_said_by_user(message) for message in front]
        if not self.late:
            others = [_said_by_user(message, _ASIDE) for message in others]
        if self.first and self.late:
            return front + others
        return _merged(front + others)


_SAID = "said_for_the_system"
_ASIDE = "<system>\n{}\n</system>"


def _shows(render: Render, besides: str, *roles: str) -> bool:
    words = [f"c0ffee{position}" for position in range(len(roles))]
    turns = [{"role": r, "content": word} for r, word in zip(roles, words, strict=True)]
    rendering = rendered(render, turns)
    return all(word in rendering for word in [*words, besides])


def _said_by_user(message: Message, form: str = "{}") -> Message:
    if message["role"] != "system":
        return message
    return {"role": "user", "content": form.format(message["content"]), _SAID: True}


def _merged(messages: Sequence[Message]) -> list[Message]:
    result: list[Message] = []
    for _, same in groupby(messages, itemgetter("role")):
        run = list(same)
        first = next((i for i, message in enumerate(run) if _SAID in message), len(run))
        # From the neighbour of the first of them on, the run is one message.
        start = max(first - 1, 0)
        result += [*run[:start], as_one(run[start:], "\n\n")]
    return [{name: m[name] for name in m if name != _SAID} for m in result]
