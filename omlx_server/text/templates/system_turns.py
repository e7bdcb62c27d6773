"""Fits system messages to what a chat template shows. One that would be refused or lost becomes
a user's in the same place, so that the prefix stays cached."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from omlx_server.text.templates.messages import Message, join_messages, join_texts
from omlx_server.text.templates.trials import Render, try_render
from omlx_server.text.turns import front_length


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


_WAS_SYSTEM = "said_for_the_system"  # a mark that `_join_former_systems` takes away again
_LATE_FORM = "<system>\n{}\n</system>"


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
