"""What a cache of prompts is worth: quantities of a `CacheSession`, and what is required of ours.

`computed` is what a server had to compute of its prompts; there is none of it for a server that
does not tell.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from omlx_server.core.blocks.keys import shared
from scripts.benchmarks.answer import Answer, computed, distinct
from scripts.benchmarks.metrics import Better, Metric, Requirement, Sample, Spec, find
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.workload import Prompt

Answers = Mapping[str, Sequence[Answer]]

_LOWER = Better.LOWER
REPEAT_COLD = "repeat_cold"
REPEAT_WARM = "repeat_warm"
_COLD = Spec(REPEAT_COLD, "first token of a prompt, new", "ms", _LOWER)
_WARM = Spec(REPEAT_WARM, "first token of a prompt, asked again", "ms", _LOWER)
_GAIN = Spec("repeat_ratio", "  asked again over new", "x", _LOWER)
_STEPS = Spec("repeat_steps", "  asked again, in decode steps", "steps", _LOWER)
_REPEATED = Spec("repeat_computed", "  asked again, computed", "tokens", _LOWER)
_PARTIAL = Spec("partial_ttft", "first token of a prompt, half known", "ms", _LOWER)
_REST = Spec("partial_computed", "  half known, computed", "tokens", _LOWER)
_BEYOND_REST = Spec("partial_extra", "  half known, computed beyond the rest", "tokens", _LOWER)
_TURNS_RATIO = Spec("turns_ratio", "  computed over new tokens", "x", _LOWER)
_TURNS_EXTRA = Spec("turns_extra", "  computed beyond new, worst turn", "tokens", _LOWER)
_TOGETHER_RATIO = Spec("together_ratio", "  computed over distinct tokens", "x", _LOWER)
TURNS = "turns_ttft"
TOGETHER_WALL = "together_wall"
TOGETHER_TTFT = "together_ttft"


def repeat(asked: Answers) -> Iterator[Sample]:
    """The first answer is cold, the others are warm."""
    for system, (cold, *warm) in asked.items():
        again = median(answer.stream.ttft for answer in warm)
        yield Sample(_COLD, system, 1e3 * cold.stream.ttft)
        yield Sample(_WARM, system, 1e3 * again)
        yield Sample(_GAIN, system, again / cold.stream.ttft)
        steps = [a.stream.ttft / a.decode_step for a in warm if a.decode_step]
        if steps:
            yield Sample(_STEPS, system, median(steps))
        tokens = [answer.computed for answer in warm if answer.computed is not None]
        if tokens:
            yield Sample(_REPEATED, system, max(tokens))


def partial(asked: Answers, known: Prompt) -> Iterator[Sample]:
    """`known` has been asked before, and starts alike."""
    for system, (answer,) in asked.items():
        yield Sample(_PARTIAL, system, 1e3 * answer.stream.ttft)
        if answer.computed is not None:
            tokens = answer.prompt.tokens
            yield Sample(_REST, system, answer.computed)
            rest = len(tokens) - shared(tokens, known.tokens)
            yield Sample(_BEYOND_REST, system, answer.computed - rest)


def turns(asked: Answers) -> Iterator[Sample]:
    """New in a turn is what was neither in the prompt before it nor in the answer to that."""
    for system, answers in asked.items():
        spec = Spec(TURNS, f"all first tokens, {len(answers)} turns", "s", _LOWER)
        yield Sample(spec, system, sum(answer.stream.ttft for answer in answers))
        total = computed(answers)
        if total is not None:
            new = _new_tokens(answers)
            yield Sample(_TURNS_RATIO, system, total / sum(new))
            extra = [(a.computed or 0) - n for a, n in zip(answers, new, strict=True)]
            yield Sample(_TURNS_EXTRA, system, max(extra))


def together(asked: Answers) -> Iterator[Sample]:
    for system, answers in asked.items():
        title = f"one long prefix, {len(answers)} at once"
        streams = [answer.stream for answer in answers]
        wall = max(stream.last for stream in streams) - min(stream.sent for stream in streams)
        yield Sample(Spec(TOGETHER_WALL, f"{title}: wall", "s", _LOWER), system, wall)
        spec = Spec(TOGETHER_TTFT, f"{title}: first token", "s", _LOWER)
        yield Sample(spec, system, median(stream.ttft for stream in streams))
        total = computed(answers)
        if total is not None:
            needed = distinct([answer.prompt.tokens for answer in answers])
            yield Sample(_TOGETHER_RATIO, system, total / needed)


def requirements(metrics: Sequence[Metric], plan: Plan) -> list[Requirement]:
    """The bounds of issue 3."""
    # Fewer requests on a shorter prefix have less to share: no fifth of the peer's time for them.
    wall = find(metrics, TOGETHER_WALL) if plan.shares_in_full else None
    return [
        _bound(metrics, _STEPS, "a prompt asked again: first token, in decode steps", 1.5),
        _bound(metrics, _REPEATED, "a prompt asked again: tokens computed", 1),
        _bound(metrics, _BEYOND_REST, "a prompt half known: tokens computed beyond the rest", 0),
        _bound(metrics, _TURNS_EXTRA, "turns: tokens computed beyond the new, worst turn", 2),
        _bound(metrics, _TOGETHER_RATIO, "at once on one prefix: computed / distinct tokens", 1.2),
        Requirement(
            "at once on one prefix: wall time against mlx_lm.server",
            wall.ratio("ours", "mlx_lm") if wall else None,
            0.2,
            _LOWER,
        ),
    ]


def _bound(metrics: Sequence[Metric], spec: Spec, title: str, bound: float) -> Requirement:
    metric = find(metrics, spec.name)
    return Requirement(title, metric.median("ours") if metric else None, bound, _LOWER)


def _new_tokens(answers: Sequence[Answer]) -> list[int]:
    first, *_ = answers
    return [
        len(first.prompt.tokens),
        *(
            len(after.prompt.tokens) - len(before.prompt.tokens) - before.stream.tokens
            for before, after in pairwise(answers)
        ),
    ]
