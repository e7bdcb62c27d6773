"""The account of several models, as health and metrics tell it."""

from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.core.memory.estimate import FlatPlanner
from omlx_server.core.memory.guard import Guard, Rung
from omlx_server.core.memory.ledger import Ledger
from omlx_server.engine.memory.account import Account
from omlx_server.engine.memory.monitor import Audit
from tests.tiny_models import load_tiny


def test_a_report_tells_sums_over_all_models() -> None:
    """Limit, weights and pool are those of all already; steps take turns."""
    planner = FlatPlanner(shape_of(load_tiny("llama")), 100)
    account = Account(150)
    account.seat(10)
    leaving = account.seat(20)
    guards = [Guard(150, planner, neighbours=None) for _ in range(2)]
    guards[0].begin(Ledger(150, weights=30, live=7, blocks=1, step=5, pool=9))
    guards[1].begin(Ledger(150, weights=30, live=2, pending=4, checkpoints=3, step=6, pool=9))
    for guard, rungs in zip(guards, [(Rung.POOL,), (Rung.POOL, Rung.PREEMPT)], strict=True):
        for rung in rungs:
            guard.note(rung)
    report = Audit(account).report(guards)
    lines = report.ledger.lines()
    assert (report.ledger.limit, lines.pop("pool") >= 0) == (150, True)
    assert lines == {
        "weights": 30,
        "live": 9,
        "blocks": 1,
        "checkpoints": 3,
        "pending": 4,
        "step": 6,
        "grammars": 0,
        "responses": 0,
    }
    assert {name: count for name, count in report.rungs if count} == {"pool": 2, "preempt": 1}
    leaving.leave()
    assert Audit(account).report(guards).ledger.weights == 10


def test_what_models_have_left_to_be_written_takes_room_from_all() -> None:
    left = [70]
    account = Account(1000, queue=50, left=lambda: left[0])
    seat = account.seat(100)
    seat.begin()
    assert (account.held().pending, seat.pending) == (70, 70)
    assert account.free() == 1000 - 100 - 70
    assert Audit(account).report([]).ledger.pending == 70
    left[0] = 0
    seat.begin()
    assert (account.held().pending, seat.pending) == (0, 0)
    assert account.free() == 1000 - 100 - 50
