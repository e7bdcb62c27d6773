"""Messages cross the wire whole, and nothing else does."""

import pickle

import pytest

from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.lookup import Piece, RestorePlan
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cluster import commands, handshake
from omlx_server.core.memory.kv import Decode, PrefillShape
from omlx_server.core.request import RequestId
from omlx_server.core.step import Chunk, Cut, Restore, RowCut, SequenceId, Step
from omlx_server.engine.cluster import wire

ID = SequenceId(RequestId("a"), 1)
CUT = Cut(0, 4, block=True, worth=None)
RECORD = Record("space", BlockKey(b"\0\xff"), 8, (1, 2, 3), RecordKind.CHECKPOINT, 2)
STEP = Step(
    drops=(ID,),
    tails=(RowCut(ID, 4, CUT),),
    decodes=(ID,),
    drafts={ID: (1, 2)},
    restores=(Restore(ID, RestorePlan(3, (Piece(PayloadId(1), 0, 3),), PayloadId(2))),),
    chunks=(Chunk(ID, 0, (7, 8)),),
)
MESSAGES = (
    commands.LaunchStep(STEP),
    commands.Chunks(STEP),
    commands.CutIds(1, PayloadId(2), None),
    commands.Reset(blocks=True),
    commands.Tidy(wholly=False),
    commands.WritePayload(PayloadId(1), RECORD),
    commands.ReadPayload(5, RECORD, 1.5),
    commands.Promote(5, None),
    commands.Clear(None),
    commands.ClearAll(),
    commands.Closing(2.5),
    commands.ProbeForward("prefill", prefill=PrefillShape(1, 2, 3)),
    commands.ProbeForward("decode", decode=Decode(1, 2)),
    commands.OneToken(),
    commands.Width(4),
    commands.PayloadRead(5),
    handshake.RankRefusal("no"),
    handshake.Alive(1, 2, 3),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_as_it_was_sent(message: object) -> None:
    assert wire.decode(wire.encode(message)) == message


def test_a_cut_keeps_its_number() -> None:
    read = wire.decode(wire.encode(commands.LaunchStep(STEP)))
    assert read.step.tails[0].cut.number == CUT.number


def test_a_welcome_has_the_devices_of_all_ranks() -> None:
    rdma = (((), ("rdma_en2",)), (("rdma_en3",), ()))
    welcome = handshake.Welcome(2, (), ("m",), "f", ("none", 4.0, 64), 16, has_cold=True, rdma=rdma)
    read = wire.decode(wire.encode(welcome))
    assert read.rdma == [[[], ["rdma_en2"]], [["rdma_en3"], []]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Launch",
        b"Launch\0",
        b"Launch\0\xff\xff",
        b"Kept\0" + wire.encode(handshake.Alive())[6:],
        b"Step\0\x80",
        pickle.dumps(handshake.Alive()),
        wire.encode(commands.LaunchStep(STEP))[:-3],
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(wire.BadMessage):
        wire.decode(data)
