"""The account of rows and blocks that hold the same bytes: each is counted once, as live memory
while a sequence uses it, and then for the hot tier."""

import pytest

from omlx_server.compute.kv.spans import Runs
from tests.compute.drive import Drive, sampling
from tests.compute.referring import SIZE, Referring, check_books
from tests.compute.warm_runs import LIMITS, tiny, tokens

pytestmark = pytest.mark.usefixtures("either_order")


def check_account(drive: Drive) -> None:
    account, index = drive.instance.ledger(), drive.instance.cache.index
    assert account.live + account.blocks == drive.runner.live_bytes
    assert account.live >= index.in_use
    assert account.blocks >= sum(block.size.nbytes for block in index.blocks() if not block.users)


def test_bytes_that_are_shared_are_counted_once_while_rows_come_and_go() -> None:
    """Prompts of whole blocks: of a tail and the block that it grows into both would count."""
    drive = Drive(tiny("llama"), LIMITS, SIZE, codec=Referring)
    shared = tokens("shared", 48)
    used = list[int]()
    for number, choices in enumerate((1, 3, 2)):
        prompt = [*shared, *tokens(number, 16), 1]
        drive.add(str(number), prompt, sampling(20), n=choices)
        for _ in range(6):
            drive.step()
            check_account(drive)
            used.append(drive.instance.cache.index.in_use)
    drive.cancel("1")
    for _ in range(3):
        drive.step()
        check_account(drive)
    assert max(used) >= 10 * drive.instance.cache.index.nbytes // len(drive.instance.cache.index)
    drive.finish()
    check_books(drive)


@pytest.mark.parametrize("choices", [1, 3])
def test_what_rows_have_left_is_at_rest(choices: int) -> None:
    """A later step that fails takes nothing of it, and its unused places are given back."""
    drive = Drive(tiny("llama"), LIMITS, SIZE, codec=Referring)
    drive.add("rows", tokens("rows", 65), sampling(9), n=choices)
    drive.finish()
    kept = len(drive.instance.cache.index)
    assert drive.runner.live_bytes < drive.runner.runs.block_bytes * 5 / 4
    drive.lose()
    assert len(drive.instance.cache.index) == kept
    check_books(drive)


def test_what_runs_hold_beyond_blocks_is_theirs_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a fifth of a run is not given back. Nobody at work has it."""
    drive = Drive(tiny("llama"), LIMITS, SIZE, codec=Referring)
    drive.add("rows", tokens("rows", 65), sampling(9))
    drive.finish()
    before = drive.instance.ledger()
    held = drive.runner.runs.block_bytes + 500
    monkeypatch.setattr(Runs, "idle_bytes", held)
    after = drive.instance.ledger()
    assert (after.live, after.blocks) == (0, before.blocks + 500)
    drive.add("next", tokens("next", 65), sampling(9))
    drive.step()
    assert drive.instance.ledger().live > 500
