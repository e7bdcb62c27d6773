"""Rows are shared between keys: who holds them all makes way for who waits."""

import pytest

from omlx_server.core.limits import Limits
from tests.core.simulator import KV, Run, make_request, right_answer

LIMITS = Limits(max_batch_size=4, prefill_chunk_tokens=8, max_batched_tokens=32)
LONG = 200


def busy(run: Run, count: int, owner: bytes) -> None:
    for number in range(count):
        name = f"{owner.decode()}{number}"
        request = make_request(name, 5 + number, LONG, owner=owner, arrived=run.now)
        assert run.scheduler.add(request, run.now) is None


def owners(run: Run) -> list[str]:
    return sorted(id.request[0] for id in run.device.rows)


def settle(run: Run, steps: int = 8) -> None:
    for _ in range(steps):
        run.step(0.5)


def test_a_key_that_waits_gets_its_half_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.core.simulator.STOP", -1)
    run = Run(LIMITS, KV)
    busy(run, 6, b"a")
    settle(run)
    assert owners(run) == ["a"] * 4
    busy(run, 6, b"b")
    run.step(0.1)
    assert owners(run) == ["a"] * 4, "nobody makes way at once"
    settle(run)
    assert owners(run) == ["a", "a", "b", "b"]
    settle(run)
    assert owners(run) == ["a", "a", "b", "b"], "and it stays so"


def test_who_made_way_ends_with_the_right_answer() -> None:
    run = Run(LIMITS, KV)
    requests = [
        make_request(f"{owner}{i}", 5 + i, 40, owner=owner.encode(), arrived=i / 10)
        for i in range(8)
        for owner in "ab"
    ]
    for request in requests:
        assert run.scheduler.add(request, run.now) is None
        run.step(0.4)
    run.finish()
    for request in requests:
        output, finish = right_answer(request, 0)
        assert run.outputs.get((request.id, 0), []) == output
        assert run.finishes[request.id, 0] is finish


def test_one_key_alone_keeps_all_rows() -> None:
    run = Run(LIMITS, KV)
    busy(run, 8, b"a")
    settle(run)
    before = owners(run)
    assert len(before) == 4
