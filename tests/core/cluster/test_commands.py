"""What other ranks get of a step: all that they compute with, and nothing of what is sampled."""

from omlx_server.core.blocks.lookup import RestorePlan
from omlx_server.core.cluster.commands import chunks_of, with_contexts, without_samples
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Chunk, Cut, Join, Restore, RowCut, SequenceId, Step

ONE, OTHER = SequenceId(RequestId("a"), 0), SequenceId(RequestId("b"), 0)
SAMPLING = SamplingParams(max_tokens=9, temperature=1.0, seed=3)
CUT = Cut(0, 4, block=True, worth=None)
JOIN = Join(ONE, (5, 6, 7, 8, 9), 5, SAMPLING, shift=2)


def test_a_decode_is_told_with_the_drafts_that_are_verified() -> None:
    step = Step(drops=(OTHER,), decodes=(ONE,), asks={ONE: 4}, row_cuts=(RowCut(ONE, 4, CUT),))
    told = without_samples(step, {ONE: (1, 2)})
    assert (told.drops, told.decodes, told.drafts) == ((OTHER,), (ONE,), {ONE: (1, 2)})
    assert not told.asks
    assert told.row_cuts[0].cut.number == CUT.number


def test_chunks_are_told_with_the_lengths_of_contexts_alone() -> None:
    chunk = Chunk(ONE, 0, (5, 6, 7, 8), (JOIN,), (CUT,))
    told = chunks_of(Step(chunks=(chunk,)), [chunk]).chunks[0]
    assert told.tokens == chunk.tokens
    assert told.joins[0].context == ()
    assert told.joins[0].sampling != SAMPLING
    [again] = with_contexts(Step(chunks=(told,))).chunks
    assert again.joins[0].context == (0,) * 5
    assert again.joins[0].shift == JOIN.shift
    assert again.cuts[0].number == CUT.number


def test_a_restore_without_its_chunk_is_not_told() -> None:
    restores = tuple(Restore(id, RestorePlan(4, ())) for id in (ONE, OTHER))
    chunks = tuple(Chunk(id, 4, (1,)) for id in (ONE, OTHER))
    told = chunks_of(Step(restores=restores, chunks=chunks), chunks[:1])
    assert [restore.prefill for restore in told.restores] == [ONE]


def test_no_two_cuts_have_the_same_number() -> None:
    cuts = [Cut(0, 4, block=True, worth=None) for _ in range(3)]
    assert len({cut.number for cut in cuts}) == 3
    assert cuts[0] == cuts[1]
