"""What four ranks answer, of each kind of model that can be split, and the starter over three:
`scripts/campaign ranks`. The right answers are those of one process."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.api.harness import UNPROBED, Json, ServerProcess, cached, serving, text_of
from tests.cluster.group import group
from tests.cluster.scenarios import Scenario, answers, load
from tests.cluster.servers import serving_together

_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
OF_FOUR = (
    Scenario("llama", 7, drafts=True, changes=_HEADS),
    Scenario("llama", 4, drafts=True, kv=("affine", 8, 32), changes={**_HEADS, "head_dim": 64}),
    Scenario("llama", 5, kv=("turboquant", 4, 32), changes={**_HEADS, "head_dim": 64}),
    Scenario("qwen3", 3, changes=_HEADS),
    Scenario("qwen3_moe", 1, drafts=True, changes=_HEADS),
    Scenario("gpt_oss", 2, drafts=True, changes=_HEADS),
    Scenario("deepseek_v3", 2, drafts=True, changes=_HEADS),
    Scenario("qwen3_next", 2, drafts=True, changes={"num_hidden_layers": 16}),
)
_STARTER = "starter"
_STARTER_RANKS = 3  # it has 9 heads, 3 of keys and values
_STORY = "A lighthouse keeper finds a letter in a bottle, and reads it aloud to the gulls. " * 4
_QUESTIONS = (_STORY + "Go on.", _STORY + "What does the letter say?", "Count from one to ten.")
_KINDS: Sequence[dict[str, Any]] = ({}, {"temperature": 0.8, "seed": 5})
_LEAST_CACHED = 48


def campaign(directory: Path, say: Callable[[str], None]) -> bool:
    """Whether all answers were right. Says so of each model."""
    problems = list[str]()
    with group(4) as four:
        for scenario in OF_FOUR:
            if four.answers(scenario) != answers(scenario, load(scenario)):
                problems.append(f"4 ranks, {scenario}: other tokens")
            say(f"4 ranks: {scenario.architecture} {scenario.kv or ''}")
    problems += _of_the_starter(directory)
    say(f"{_STARTER_RANKS} ranks: {_STARTER}")
    for problem in problems:
        say(f"WRONG: {problem}")
    return not problems


def _of_the_starter(directory: Path) -> Iterator[str]:
    """What was wrong: of answers without and with the prefix cache, and after a restart."""
    models = directory / "models"
    models.mkdir()
    with serving(_STARTER, directory / "one", UNPROBED) as server:
        expected = _talked(server)
    options: dict[str, Any] = {"model": _STARTER, "size": _STARTER_RANKS}
    for life in ("first", "second"):
        with serving_together(models, directory / "three", **options) as server:
            for got, right in zip(_talked(server), expected, strict=True):
                if text_of(got) != text_of(right):
                    yield f"{life} life: {text_of(got)!r}, not {text_of(right)!r}"
            first = server.chat(_QUESTIONS[0], max_tokens=1)
            if cached(first) < _LEAST_CACHED:
                yield f"{life} life: only {cached(first)} tokens came from the cache"


def _talked(server: ServerProcess) -> list[Json]:
    """The answers to all questions, each asked twice."""
    return [
        server.chat(question, max_tokens=24, **kind)
        for kind in _KINDS
        for question in _QUESTIONS
        for _ in range(2)
    ]
