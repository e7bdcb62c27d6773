"""What is told of a request at work, from what its exchange and the scheduler know."""

from typing import Any

import pytest

from omlx_server.api.activity.answers import LoadProgress, RequestAtWork
from omlx_server.api.activity.requests_at_work import MOST_REQUESTS, describe_requests
from omlx_server.api.http.exchange import Exchange, Phases
from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.standings import Standing, WaitReason

NOW = 100.0


def at_work(*phases: Phases, model: str = "m") -> Exchange:
    exchange = Exchange("req_1", "POST", started=90.0, model=model)
    exchange.phases.extend(phases)
    return exchange


def standing(place: str, awaited: WaitReason = WaitReason.STEP, **fields: Any) -> Standing:
    known = {"choices": 1, "prompt": 40, "computed": 0, "output": 0, **fields}
    return Standing(RequestId("a"), place, waits_for=awaited, arrived=90.0, **known)


def lane(exchange: Exchange, *standings: Standing, pace: float | None = None) -> RequestAtWork:
    paces = {} if pace is None else {exchange: pace}
    return describe_requests([exchange], {exchange: standings}, paces, ["m"], {}, NOW)[exchange]


@pytest.mark.parametrize(
    ("known", "place", "waits_for"),
    [
        (standing("waiting", WaitReason.TURN), "queued", "its turn"),
        (standing("waiting", WaitReason.BLOCK), "queued", "a block that another prompt computes"),
        (standing("waiting", WaitReason.COLD), "restoring", "the cold tier"),
        (standing("waiting", WaitReason.ROWS, output=3), "paused", "rows"),
        (standing("preempted", output=3), "paused", None),
        (standing("active", computed=8), "prefilling", None),
        (standing("running", computed=41), "decoding", None),
        (standing("finishing", computed=41), "decoding", None),
    ],
)
def test_each_place_has_its_name(known: Standing, place: str, waits_for: str | None) -> None:
    found = lane(at_work(Phases(41)), known)
    assert (found["place"], found["waits_for"]) == (place, waits_for)
    assert (found["id"], found["seconds"], found["prompt_tokens"]) == ("req_1", 10.0, 41)


def test_of_several_choices_the_one_that_is_furthest_is_told() -> None:
    rows = standing("running", computed=45), standing("waiting", WaitReason.ROWS, choices=2)
    found = lane(at_work(Phases(40)), *rows)
    assert (found["place"], found["choices"]) == ("decoding", 3)
    assert found["computed_tokens"] == 40  # of the prompt alone, and once


def test_what_came_from_the_cache_is_told_while_it_is_prefilling() -> None:
    found = lane(at_work(Phases(41)), standing("active", computed=24, restored=16), pace=123.456)
    assert (found["cached_tokens"], found["computed_tokens"]) == (16, 24)
    assert found["tokens_per_second"] == 123.5


def test_an_answer_has_its_own_pace() -> None:
    phases = Phases(41, first=95.0, last=99.0, generated=11, begun=3, cached_tokens=16)
    found = lane(at_work(phases), standing("running", computed=50), pace=123.0)
    assert (found["tokens_per_second"], found["output_tokens"]) == (2.0, 11)
    assert found["cached_tokens"] == 16


def test_without_word_of_the_scheduler_the_exchange_alone_is_told() -> None:
    assert lane(at_work(Phases(41)))["place"] == "queued"
    found = lane(at_work(Phases(41, first=95.0, generated=1)))
    assert (found["place"], found["computed_tokens"]) == ("decoding", 41)


def test_who_waits_for_a_model_is_queued_and_who_asks_for_no_prompt_is_none() -> None:
    waits = at_work(model="other")
    loads: dict[str, LoadProgress] = {"other": {"bytes": 3, "total": 8}}
    described = describe_requests([waits, at_work(), at_work(model="")], {}, {}, ["m"], loads, NOW)
    assert list(described) == [waits]
    found = described[waits]
    assert (found["model"], found["place"], found["waits_for"]) == ("other", "queued", "its model")
    assert found["load"] == loads["other"]


def test_lanes_are_bounded() -> None:
    many = [at_work(Phases(1)) for _ in range(MOST_REQUESTS + 5)]
    assert len(describe_requests(many, {}, {}, ["m"], {}, NOW)) == MOST_REQUESTS
