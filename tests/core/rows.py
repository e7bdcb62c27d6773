"""Rows of several keys."""

from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.core.simulator import Run, make_request

LIMITS = SchedulerLimits(max_batch_size=4, prefill_chunk_tokens=8, max_batched_tokens=32)
LONG = 200


def busy(run: Run, count: int, owner: bytes) -> None:
    for number in range(count):
        name = f"{owner.decode()}{number}"
        request = make_request(name, 5 + number, LONG, owner=owner, arrived=run.now)
        assert run.scheduler.add(request) is None


def owners(run: Run) -> list[str]:
    return sorted(id.request[0] for id in run.device.rows)


def settle(run: Run, steps: int = 8) -> None:
    for _ in range(steps):
        run.step(0.5)
