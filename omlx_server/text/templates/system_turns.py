"""Where a chat template can take system messages, and messages fitted to it. Pure.

Agents send several of them, at the front and between turns. Some templates refuse that, and some
leave all but the first out without a word. So each is tried once, and a text that would be lost is
said by the user instead, in its place: what stands before it stays as it was, also in the cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.errors import BadRequest

Message = dict[str, Any]
Render = Callable[[Sequence[Mapping[str, Any]]], str]


@dataclass(frozen=True, slots=True)
class SystemTurns:
    """Whether a template shows a system message at the `first` place, more of them there (`many`),
    and `late` ones."""

    first: bool = True
    many: bool = True
    late: bool = True

    @classmethod
    def of(cls, render: Render) -> "SystemTurns":
        return cls(
            first=_shows(render, "system", "user"),
            many=_shows(render, "system", "system", "user"),
            late=_shows(render, "system", "user", "assistant", "user", "system", "user"),
        )

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as they are, where the template takes them."""
        count = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
        front, rest = list(messages[:count]), list(messages[count:])
        if len(front) > 1 and not self.many:
            front = [{**front[0], "content": _joined(*(m["content"] for m in front))}]
        if not self.first:
            front = [_said_by_user(message) for message in front]
        if not self.late:
            rest = [_said_by_user(message, _ASIDE) for message in rest]
        if self.first and self.late:
            return front + rest
        return _merged(front + rest)


_SAID = "said_for_the_system"
_ASIDE = "<system>\n{}\n</system>"


def _shows(render: Render, *roles: str) -> bool:
    words = [f"c0ffee{position}" for position in range(len(roles))]
    turns = [{"role": r, "content": word} for r, word in zip(roles, words, strict=True)]
    try:
        rendering = render(turns)
    except BadRequest:
        return False
    return all(word in rendering for word in words)


def _said_by_user(message: Message, form: str = "{}") -> Message:
    if message["role"] != "system":
        return message
    return {"role": "user", "content": form.format(message["content"]), _SAID: True}


def _merged(messages: Sequence[Message]) -> list[Message]:
    """What is said for the system joins a neighbour of the user's: many templates want the roles
    to alternate."""
    result: list[Message] = []
    contents: list[list[str]] = []  # joined once: what grows would be copied with every message
    for message in messages:
        last = result[-1] if result else None
        both = last is not None and last["role"] == message["role"] == "user"
        if last is not None and both and (_SAID in last or _SAID in message):
            result[-1] = {**last, **message}
            contents[-1].append(message["content"])
        else:
            result.append(message)
            contents.append([message["content"]])
    return [
        {key: value for key, value in message.items() if key != _SAID}
        | ({"content": _joined(*texts)} if len(texts) > 1 else {})
        for message, texts in zip(result, contents, strict=True)
    ]


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)
