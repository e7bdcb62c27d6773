"""The grammar of an answer in channels, as gpt-oss writes it.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

Source: https://cookbook.openai.com/articles/openai-harmony.
"""

import re
from collections.abc import Callable, Sequence

from omlx_server.core.request import Constraint
from omlx_server.text.grammar.to_grammar import GrammarSpec, lark_string
from omlx_server.text.grammar.tools import Function, SpecialId, args_rule, calls_spec, lark_marker
from omlx_server.text.grammar.wrappers import ConstraintWrapper
from omlx_server.text.reasoning.style import Opening

_FINAL_HEADER = re.compile(rb"<\|channel\|>final[^<]*(<\|constrain\|>[^<]*)?<\|message\|>\Z")
_MAX_HEADER_BYTES = 64
# `thought`, `comment` and `final` are messages; `next` is what stands between two.
_RULES = r"""start: {answer}
thought: {channel} "analysis" {message} thinking next
thinking{limit}: TEXT
comment: {channel} "commentary" {message} TEXT next
final: {channel} "final" type {message} TEXT
type: (" "? {constrain} "json" | " json")?
next: {end} {start} "assistant"
TEXT: /(.|\n)*/"""


def channel_grammar(
    functions: Sequence[Function],
    special_id: SpecialId,
    opening: Opening,
    *,
    required: bool,
    enforced: bool,
    budget: int | None,
    has_format: bool = False,
) -> GrammarSpec:
    """Return the grammar of an answer that may call `functions`, or must if `required`.
    `enforced`: arguments obey their schema. `budget`: the most tokens of the only thought; None
    for any number of thoughts. With `has_format` no text stands before the final one. Raises
    BadRequest for a schema that can't be enforced."""
    marks = {name: lark_marker(f"<|{name}|>", special_id) for name in _MARKERS}
    limit = f"[max_tokens={budget}]" if budget else ""
    last = _last_messages(functions, budget, required=required, has_format=has_format)
    answer = _answer_rule(functions, opening, required, budget, last)
    rules = [_RULES.format(answer=answer, limit=limit, **marks)]
    for i, function in enumerate(functions):
        to = f"to=functions.{function.name}"
        headers = (
            f"{marks['channel']} {lark_string(f'commentary {to}')}",
            f'{lark_string(f" {to}")} {marks["channel"]} "commentary"',
        )
        body = args_rule(function) if enforced else "TEXT"
        rules += [f"header_{i}: ({' | '.join(headers)}) type", f"args_{i}: {body}"]
    calls = [f"header_{i} {marks['message']} args_{i}" for i in range(len(functions))]
    return calls_spec([*rules, f"call: {' | '.join(calls)}"] if calls else rules, functions)


_MARKERS = ("channel", "message", "constrain", "end", "start")


def _answer_rule(
    functions: Sequence[Function], opening: Opening, required: bool, budget: int | None, last: str
) -> str:
    if opening is Opening.PAST:
        if required:
            return "TEXT next call"
        return "TEXT (next call)?" if functions else "TEXT"
    if opening is Opening.WITHIN:
        first_thought = "next" if budget == 0 else "thinking next"
    else:
        first_thought = "thought?" if budget else ""
    more_thoughts = "thought*" if budget is None else ""
    return f"{first_thought} {more_thoughts} ({last})"


def _last_messages(
    functions: Sequence[Function], budget: int | None, *, required: bool, has_format: bool
) -> str:
    if required or not functions:
        return "call" if required else "final"
    comments = "comment (thought | comment)*" if budget is None else "comment"
    # With a format only a call may follow a comment.
    return f"({comments})? call | final" if has_format else f"({comments})? (call | final)"


class ChannelConstraint(ConstraintWrapper):
    """Obeys `frame`, of `channel_grammar`, till the final message begins, then `answer`."""

    def __init__(
        self, frame: Constraint, answer: Constraint, bytes_of: Callable[[int], bytes]
    ) -> None:
        super().__init__(frame)
        self._answer: Constraint | None = answer  # only copies of it are changed
        self._bytes_of = bytes_of
        self._last_bytes = b""

    @property
    def done(self) -> bool:
        return self._answer is None and self._inner.done

    def mask(self) -> bytes:
        return self._inner.mask()

    def forced(self) -> Sequence[int]:
        return self._inner.forced()

    def take(self, token: int) -> None:
        self._inner.take(token)
        if self._answer is None:
            return
        self._last_bytes = (self._last_bytes + self._bytes_of(token))[-_MAX_HEADER_BYTES:]
        if _FINAL_HEADER.search(self._last_bytes):
            self._inner, self._answer = self._answer.copy(), None
