"""The account of several models, as health and metrics tell it."""

from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.core.memory.estimate import FlatPlanner
from omlx_server.core.memory.guard import MemoryGuard, Relief
from omlx_server.core.memory.ledger import Ledger
from omlx_server.engine.memory.account import Audit, MemoryAccount
from tests.tiny_models import load_tiny


def test_a_report_tells_sums_over_all_models() -> None:
    """Limit, weights and pool are those of all already; steps take turns."""
    planner = FlatPlanner(shape_of(load_tiny("llama")), 100)
    account = MemoryAccount(150)
    shares = account.share(10), account.share(20)
    guards = [MemoryGuard(150, planner, share) for share in shares]
    guards[0].begin(Ledger(150, weights=30, live=7, blocks=1, step=5, pool=9))
    guards[1].begin(Ledger(150, weights=30, live=2, pending=4, checkpoints=3, step=6, pool=9))
    for guard, reliefs in zip(guards, [(Relief.POOL,), (Relief.POOL, Relief.PREEMPT)], strict=True):
        for relief in reliefs:
            guard.note(relief)
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
        "machine": 0,
        "grammars": 0,
        "token_ids": 0,
        "responses": 0,
        "bodies": 0,
    }
    assert {name: count for name, count in report.reliefs if count} == {"pool": 2, "preempt": 1}
    shares[1].leave()
    assert Audit(account).report(guards).ledger.weights == 10


def test_what_models_have_left_to_be_written_takes_room_from_all() -> None:
    left = [70]
    account = MemoryAccount(1000, queue=50, unwritten=lambda: left[0])
    share = account.share(100)
    share.note_others()
    assert (account.held().pending, share.pending) == (70, 70)
    assert account.free() == 1000 - 100 - 70
    assert Audit(account).report([]).ledger.pending == 70
    left[0] = 0
    share.note_others()
    assert (account.held().pending, share.pending) == (0, 0)
    assert account.free() == 1000 - 100 - 50
