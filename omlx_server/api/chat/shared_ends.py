"""Where later requests will probably leave the way of this one.

Recurrent layers can be restored at checkpoints only, so these are placed where conversations
repeat: after the system prompt, after the turns before the last, and at the end of the prompt for
templates that show past answers without their reasoning, so that an answer is not repeated as it
was made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omlx_server.core.blocks.keys import shared
from omlx_server.errors import BadRequest

Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[Messages], list[int]]

_OTHER = {"role": "user", "content": "\N{WHITE SQUARE}"}
_SECRET = "o7q1"


def shared_ends(messages: Messages, tokens: Sequence[int], encode: Encode) -> tuple[int, ...]:
    """Positions in `tokens` at which another turn could have followed instead."""
    systems = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    ends = set()
    for count in {systems, last_user}:
        try:
            other = encode([*messages[:count], _OTHER])
        except BadRequest:
            continue  # the template refuses such a conversation, so none will come
        ends.add(shared(tokens, other))
    return tuple(sorted(end for end in ends if end > 0))


def strips_reasoning(render: Callable[[Messages], str]) -> bool:
    """Whether a template shows past answers without what they thought."""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": f"<think>\n{_SECRET}\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    try:
        return _SECRET not in render(turns)
    except BadRequest:
        return False
