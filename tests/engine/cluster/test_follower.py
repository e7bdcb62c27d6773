"""A rank does what rank 0 tells it with its own payloads, or says that it is out of step."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.payload import BlockCodec
from omlx_server.compute.prefill import Prefiller
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import root_key
from omlx_server.core.blocks.record import Record
from omlx_server.core.cluster import commands
from omlx_server.core.cluster.commands import Command
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.request import RequestId
from omlx_server.core.step import Chunk, Cut, SequenceId, Step
from omlx_server.engine.cluster.follower import Follower, OutOfStep
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from tests.cluster.scenarios import Scenario, load
from tests.store.cold_tier import hanging, opened

TOKENS = (5, 6, 7, 8)
ID = PayloadId(1)
RECORD = Record("rank 0", root_key("rank 0", b""), 0, TOKENS)


@pytest.fixture
def answers() -> list[object]:
    return []


def follower_of(
    cold: ColdTier | None, answer: Callable[[object], None], ranks: Ranks = ALONE
) -> Follower:
    loaded = replace(load(Scenario("llama")), ranks=ranks)
    codec = BlockCodec.of(loaded.model, len(TOKENS))
    return Follower(loaded, codec, cold, "rank 1", answer)


def write_block(follower: Follower) -> None:
    """Have it compute the tokens, keep them as a block, and write that to its cold tier."""
    cut = Cut(0, len(TOKENS), block=True, worth=None)
    chunk = Chunk(SequenceId(RequestId("r"), 0), 0, (*TOKENS, 9), cuts=(cut,))
    follower.do(commands.Chunks(Step(chunks=(chunk,))))
    follower.do(commands.CutIds(cut.number, ID, None))
    follower.do(commands.WritePayload(ID, RECORD))
    follower.drain(30)
    follower.poll()


def until(condition: Callable[[], bool], do: Callable[[], None]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        do()
        time.sleep(0.01)


def test_a_block_goes_to_its_own_cold_tier_and_comes_back(
    tmp_path: Path, answers: list[object]
) -> None:
    with opened(Files(tmp_path)) as cold:
        follower = follower_of(cold, answers.append)
        write_block(follower)
        assert not cold.pending
        follower.do(commands.Drop((ID,)))
        follower.do(commands.ReadPayload(7, RECORD, 30.0))
        until(lambda: bool(answers), follower.poll)
        assert answers == [commands.PayloadRead(7)]
        follower.do(commands.Promote(7, PayloadId(2)))
        follower.do(commands.Drop((PayloadId(2),)))  # it has this one now


def test_a_busy_rank_says_that_a_read_takes_too_long(tmp_path: Path, answers: list[object]) -> None:
    """Rank 0 waits for the answer of every rank, also where the disk of one hangs for ever."""
    with hanging(tmp_path, "read") as (cold, gate):
        follower = follower_of(cold, answers.append)
        write_block(follower)
        gate.open.clear()
        follower.do(commands.ReadPayload(7, RECORD, 0.1))
        assert not answers
        until(lambda: bool(answers), lambda: follower.do(commands.Tidy(wholly=False)))
        assert answers == [commands.PayloadRead(7, "timeout")]


@pytest.mark.parametrize("command", [commands.Clear(None), commands.ClearAll()])
def test_a_block_that_is_cleared_is_gone(
    tmp_path: Path, answers: list[object], command: Command
) -> None:
    with opened(Files(tmp_path)) as cold:
        follower = follower_of(cold, answers.append)
        write_block(follower)
        follower.do(command)
        follower.do(commands.ReadPayload(7, RECORD, 30.0))
        until(lambda: bool(answers), follower.poll)
        assert answers == [commands.PayloadRead(7, "gone")]
        follower.drain(30)
        assert not list(tmp_path.rglob("*.safetensors"))


def test_without_a_cold_tier_nothing_is_found(answers: list[object]) -> None:
    follower = follower_of(None, answers.append)
    follower.do(commands.ReadPayload(7, RECORD, 1.0))
    assert answers == [commands.PayloadRead(7, "gone")]


def test_a_prompt_that_fails_since_a_rank_is_gone_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process ends, and says in one line why: `tells_of_loss`."""

    def run(*_: object) -> None:
        raise RuntimeError("[ring] connection to a peer was lost")

    monkeypatch.setattr(Prefiller, "run", run)
    with pytest.raises(RuntimeError, match="a peer was lost"):
        ranks = ConnectedRanks(1, 2, mx.distributed.init(backend="any"))
        write_block(follower_of(None, lambda answer: None, ranks))
    assert not caplog.records


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (commands.CutIds(99, ID, None), "keeps a block that was not cut here"),
        (commands.Promote(9, ID), "uses a block that was not read here"),
        (commands.Accept((1,), (2,)), "accepts drafts that are not verified here"),
        (commands.Closing(1.0), "tells what no rank does: Closing"),
    ],
)
def test_what_it_can_not_do_as_rank_0_did_is_out_of_step(command: Command, why: str) -> None:
    with pytest.raises(OutOfStep, match=why):
        follower_of(None, lambda answer: None).do(command)
