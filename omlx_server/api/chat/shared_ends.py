"""The positions in a prompt up to which later requests will probably repeat it.

Recurrent layers can be restored at checkpoints only, so these are placed at such positions: after
the system prompt, and before the user's last message. A template that shows past answers without
their reasoning does not repeat an answer as it was made: then the end of the prompt is one, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omlx_server.core.blocks.keys import shared
from omlx_server.errors import BadRequest
from omlx_server.text.turns import front_of

Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[Messages], list[int]]

_OTHER = {"role": "user", "content": "\N{WHITE SQUARE}"}
_SECRET = "o7q1"


def shared_ends(messages: Messages, tokens: Sequence[int], encode: Encode) -> tuple[int, ...]:
    """The positions in `tokens` up to which the prompt would stay the same if another user message
    followed the system prompt, or took the place of the last one. `encode` gives a prompt's tokens.
    """
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    ends = set()
    for count in {front_of(messages), last_user}:
        try:
            other = encode([*messages[:count], _OTHER])
        except BadRequest:
            continue  # the template refuses such a conversation, so none will come
        ends.add(shared(tokens, other))
    return tuple(sorted(end for end in ends if end > 0))


def strips_reasoning(render: Callable[[Messages], str]) -> bool:
    """Whether a template leaves the reasoning out of past answers; False where it refuses the
    probe."""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": f"<think>\n{_SECRET}\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    try:
        return _SECRET not in render(turns)
    except BadRequest:
        return False
