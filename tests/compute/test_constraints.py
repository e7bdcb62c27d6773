"""Rows that obey a constraint, on real models: among free rows, with drafts of what it forces, for
every kind of cache.

The constraint is a template: a set of tokens for each place of the answer. Places with one token
are forced.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.request import FinishReason, TokenEvent
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.oracle import greedy
from tests.compute.templates import ANY, Places, Template, form, literal
from tests.compute.warm_runs import tiny, tokens
from tests.sweeps import sweep
from tests.tiny_models import CONFIGS, VOCAB

pytestmark = pytest.mark.usefixtures("either_order")

BLOCK = 32


def drive(loaded: LoadedModel, **limits: Any) -> Drive:
    return Drive(loaded, replace(LIMITS, **limits), BLOCK)


def ask(to: Drive, name: str, places: Places, *, ahead: bool = True, **changes: Any) -> None:
    constraint = Template(places, ahead)
    to.add(name, tokens(name, 20), sampling(100, **changes), constraint=constraint)


def obeys(answer: Sequence[int], places: Places) -> bool:
    return len(answer) == len(places) and all(t in p for t, p in zip(answer, places, strict=True))


def steps(to: Drive) -> int:
    count = 0
    while to.instance.scheduler.has_work:
        to.step()
        count += 1
    to.finish()
    return count


@pytest.mark.parametrize(("architecture", "temperature"), sweep(CONFIGS, [0, 1.5]))
def test_alone_the_answer_is_the_same_with_forced_tokens_made_known_or_not(
    architecture: str, temperature: float
) -> None:
    loaded, places = tiny(architecture), form(architecture)
    answers, counts = [], []
    for ahead in (False, True):
        own = drive(loaded)
        ask(own, "x", places, ahead=ahead, temperature=temperature, seed=3)
        counts.append(steps(own))
        answers.append(own.answers["x/0"])
        assert own.ends["x/0"] is FinishReason.STOP
    assert obeys(answers[0], places) and answers[0] == answers[1]
    assert counts[1] < counts[0] - 20


@pytest.mark.parametrize("architecture", CONFIGS)
def test_beside_others_all_answers_are_as_alone(architecture: str) -> None:
    """Free rows and constrained ones, which join late and draft different numbers of tokens."""
    loaded = tiny(architecture)
    both = drive(loaded)
    free = {f"free {n}": tokens(n, 9 + n) for n in range(2)}
    alone = {}
    for name in ("a", "b", "c"):
        own = drive(loaded)
        ask(own, name, form(name))
        own.finish()
        alone[f"{name}/0"] = own.answers[f"{name}/0"]
    for name, prompt in free.items():
        alone[f"{name}/0"] = greedy(loaded.model, prompt, 40)
    for (name, prompt), constrained in zip([*free.items(), ("", [])], "abc", strict=True):
        if prompt:
            both.add(name, prompt, sampling(40))
        ask(both, constrained, form(constrained))
        both.step()
        both.step()
    both.finish()
    assert both.answers == alone


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "mamba2"])
def test_at_a_high_temperature_with_filters_and_bias_it_is_still_obeyed(architecture: str) -> None:
    own = drive(tiny(architecture))
    for number in range(4):
        wild: dict[str, Any] = {"temperature": 2.0, "top_p": 0.5, "min_p": 0.3, "top_k": 2}
        banned = tuple((token, -100.0) for token in range(0, VOCAB, 2))
        ask(
            own,
            f"{number}",
            form(number),
            logit_bias=banned,
            repetition_penalty=1.5,
            seed=number,
            **wild,
        )
    own.finish()
    assert all(obeys(own.answers[f"{number}/0"], form(number)) for number in range(4))


def test_choices_of_one_request_go_their_own_ways() -> None:
    own = drive(tiny("llama"))
    places = form("n")
    params = sampling(100, temperature=2.0, seed=5)
    own.add("x", tokens("x", 20), params, n=4, constraint=Template(places))
    own.finish()
    answers = [own.answers[f"x/{choice}"] for choice in range(4)]
    assert all(obeys(answer, places) for answer in answers)
    assert len({tuple(answer) for answer in answers}) == 4


def test_a_row_that_comes_back_goes_on_where_it_was() -> None:
    """After the device was lost, or the row was sent back to the queue."""
    expected = drive(tiny("llama"))
    ask(expected, "x", form("x"))
    expected.finish()
    own = drive(tiny("llama"))
    ask(own, "x", form("x"))
    for _ in range(5):
        for _ in range(4):
            own.step()
        own.lose()
    own.finish()
    assert own.answers == expected.answers


def test_what_is_wrong_with_a_constraint_is_its_own_requests_end() -> None:
    own = drive(tiny("llama"))
    torn, costly = (Template(form("x"), fails_at=1, too_costly=fault) for fault in (False, True))
    own.add("x", tokens("x", 20), sampling(100), constraint=torn)
    own.add("y", tokens("x", 20), sampling(100), constraint=costly)
    own.add("free", tokens("free", 20), sampling(30))
    own.finish()
    assert own.ends["x/0"] is FinishReason.ERROR
    assert own.ends["y/0"] is FinishReason.GRAMMAR
    assert own.answers["free/0"] == greedy(own.loaded.model, tokens("free", 20), 30)


def test_each_token_has_its_log_probability_also_where_it_was_forced() -> None:
    told = list[TokenEvent]()
    own = drive(tiny("llama"))
    own.seen = told.append  # type: ignore[method-assign,assignment]
    ask(own, "x", form("x"), top_logprobs=0)
    assert steps(own) < len(form("x"))
    assert obeys(own.answers["x/0"], form("x"))
    assert all(event.logprobs is not None for event in told)


def test_it_ends_at_max_tokens_also_among_tokens_that_must_follow() -> None:
    places = (ANY, *literal("long", 50))
    for count in (1, 2, 9, 30):
        own = drive(tiny("llama"))
        own.add("x", tokens("x", 20), sampling(count), constraint=Template(places))
        own.finish()
        assert len(own.answers["x/0"]) == count
        assert own.ends["x/0"] is FinishReason.LENGTH
        assert own.answers["x/0"][1:] == tokens("long", 50)[: count - 1]


def test_what_it_computed_is_found_again() -> None:
    """Blocks that were completed by drafted tokens are right."""
    own = drive(tiny("llama"))
    ask(own, "x", form("x") * 3)
    own.finish()
    told = [*tokens("x", 20), *own.answers["x/0"]]
    again = own.answer("again", told, 10)
    assert own.admitted["again"].cached >= len(told) - 2
    assert again == greedy(own.loaded.model, told, 10)
