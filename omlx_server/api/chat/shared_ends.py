"""Find the positions in a prompt up to which later requests will probably repeat it.

Recurrent layers are restored at checkpoints only. They go after the system prompt, before the last
user message, and where the next turn leaves the prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omlx_server.core.blocks.keys import shared
from omlx_server.errors import BadRequest
from omlx_server.text.overflow import front_length

Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[Messages], list[int]]

_OTHER_QUESTION = {"role": "user", "content": "\N{WHITE SQUARE}"}
# A text that no template holds.
_MARKER = "o7q1"
_ANSWER = {"role": "assistant", "content": _MARKER}


def shared_ends(
    messages: Messages, tokens: Sequence[int], encode: Encode, *, strips: bool = False
) -> tuple[int, ...]:
    """Return positions in `tokens` up to which later prompts repeat this one, where:

    - another user message follows the system prompt
    - another user message replaces the last one
    - the conversation goes on; with `strips` it leaves out the reasoning of past answers
    """
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    others = [[*messages[:kept], _OTHER_QUESTION] for kept in {front_length(messages), last_user}]
    ends = {_count_shared(tokens, other, encode) for other in others}
    answers = [] if messages[-1]["role"] == "assistant" else [_ANSWER]
    # Where the template refuses the next turn, assume that it repeats the whole prompt.
    next_turn = _count_shared(tokens, [*messages, *answers, _OTHER_QUESTION], encode) or len(tokens)
    # The caches of a prompt hold all but its last token, and their end is a checkpoint anyway.
    if strips or next_turn < len(tokens):
        ends.add(min(next_turn, len(tokens) - 1))
    return tuple(sorted(end for end in ends if end > 0))


def _count_shared(tokens: Sequence[int], other: Messages, encode: Encode) -> int:
    """Count the first `tokens` that another conversation shares, 0 if the template refuses it."""
    try:
        return shared(tokens, encode(other))
    except BadRequest:
        return 0


def strips_reasoning(render: Callable[[Messages], str]) -> bool:
    """Return whether a template leaves reasoning out of past answers."""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": f"<think>\n{_MARKER}\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    try:
        return _MARKER not in render(turns)
    except BadRequest:
        return False
