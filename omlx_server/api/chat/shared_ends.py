"""The positions in a prompt up to which later requests will probably repeat it.

Recurrent layers can be restored at checkpoints only, so these are placed at such positions: after
the system prompt, and before the user's last message. Where the next turn will not repeat the
answer as it is made, they are also placed where it leaves the prompt: at its end if the template
shows past answers without their reasoning, before its end if it ends with the start of a thought
that is not shown later.
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
_ANSWER = {"role": "assistant", "content": _SECRET}


def shared_ends(
    messages: Messages, tokens: Sequence[int], encode: Encode, *, strips: bool = False
) -> tuple[int, ...]:
    """The positions in `tokens` up to which the prompt would stay the same if another user message
    followed the system prompt, or took the place of the last one, and up to which the next turn
    repeats it. `encode` gives a prompt's tokens; `strips` is what `strips_reasoning` says."""
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    others = [[*messages[:count], _OTHER] for count in {front_of(messages), last_user}]
    ends = {_shared(tokens, other, encode) for other in others}
    answer = [] if messages[-1]["role"] == "assistant" else [_ANSWER]
    next_turn = _shared(tokens, [*messages, *answer, _OTHER], encode) or len(tokens)
    if strips or next_turn < len(tokens):
        ends.add(min(next_turn, len(tokens) - 1))
    return tuple(sorted(end for end in ends if end > 0))


def _shared(tokens: Sequence[int], other: Messages, encode: Encode) -> int:
    """How many of `tokens` another conversation begins with. 0 where the template refuses it, so
    that it will not come."""
    try:
        return shared(tokens, encode(other))
    except BadRequest:
        return 0


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
