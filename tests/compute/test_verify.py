"""A decode that verifies drafts gives what decodes of single tokens give, whatever the drafts were,
and the caches go on as if nothing wrong had been in them."""

import mlx.core as mx
import pytest

from omlx_server.compute.runner import ModelRunner
from omlx_server.compute.sampler import Sampled
from omlx_server.compute.verify import Feed, VerifyingDecode
from omlx_server.core.request import RequestId, SampledRow
from omlx_server.core.speculation.methods import DraftVerification
from omlx_server.core.step import Chunk, Join, SequenceId, Step
from tests.compute.drive import sampling
from tests.compute.oracle import greedy
from tests.compute.sampling import live
from tests.compute.warm_runs import tiny, tokens
from tests.tiny_models import CONFIGS, VOCAB

ANSWER = 60


class Rows:
    """Rows of one batch, each with the answer that it should give."""

    def __init__(self, architecture: str, lengths: tuple[int, ...]) -> None:
        loaded = tiny(architecture)
        self.runner = ModelRunner(loaded)
        self.ids = [SequenceId(RequestId(str(length)), 0) for length in lengths]
        prompts = [tuple(tokens(length, length)) for length in lengths]
        self.answers = [greedy(loaded.model, prompt, ANSWER) for prompt in prompts]
        self.got: list[list[int]] = [[] for _ in lengths]
        chunks = [
            Chunk(id, 0, prompt[:-1], (Join(id, prompt, len(prompt), sampling(ANSWER)),))
            for id, prompt in zip(self.ids, prompts, strict=True)
        ]
        assert not self.runner.prefill(Step(chunks=tuple(chunks))).failures

    def decode(self, right: tuple[int, ...], wrong: tuple[int, ...]) -> list[SampledRow]:
        """One step: row i drafts so many right tokens, then so many wrong ones."""
        drafts = {}
        for id, answer, got, good, bad in zip(
            self.ids, self.answers, self.got, right, wrong, strict=True
        ):
            at = len(got)
            others = tuple((token + 1) % VOCAB for token in answer[at + good : at + good + bad])
            drafts[id] = (*answer[at : at + good], *others)
        step = Step(decodes=tuple(self.ids), drafts={i: d for i, d in drafts.items() if d})
        result = self.runner.read(self.runner.decode(step))
        rows = [result.rows[id] for id in self.ids]
        for got, row in zip(self.got, rows, strict=True):
            got += [token.id for token in row.tokens]
        return rows

    def check(self) -> None:
        for got, answer in zip(self.got, self.answers, strict=True):
            assert got == answer[: len(got)]


def test_the_constraint_behind_the_last_right_token_takes_the_next() -> None:
    """Of two rows: one drafts two tokens, of which the first is right; the other drafts none."""
    state = live.row("a", VOCAB)
    feeds = [Feed((5, 6), [state] * 3), Feed((), [state])]
    behind = {place: live.Fixed() for place in range(4)}
    sampled = Sampled(mx.array([5, 9, 0, 7]), constraints=dict(behind))
    rows = VerifyingDecode(feeds, sampled, mx.array([[4, 5, 6], [4, 0, 0]])).to_host()
    assert [row.accepted for row in rows] == [1, 0]
    assert [[token.id for token in row.tokens] for row in rows] == [[5, 9], [7]]
    assert [one.told for one in behind.values()] == [[], [9], [], [7]]


def verifying(needed: DraftVerification) -> list[str]:
    return [name for name in CONFIGS if needed in tiny(name).verifies]


@pytest.mark.parametrize("architecture", verifying(DraftVerification.ALONE))
def test_a_lone_row_keeps_what_was_right(architecture: str) -> None:
    """Across the end of windows of 16 tokens, and of buffers."""
    rows = Rows(architecture, (11,))
    for right, wrong in ((0, 3), (2, 2), (5, 0), (0, 1), (4, 7), (1, 1), (9, 0), (3, 3)):
        [row] = rows.decode((right,), (wrong,))
        assert row.accepted == right
        rows.decode((0,), (0,))
    rows.check()


@pytest.mark.parametrize("architecture", verifying(DraftVerification.TOGETHER))
def test_rows_keep_their_own_part_each(architecture: str) -> None:
    """Of one length class, and of another."""
    rows = Rows(architecture, (11, 400, 23))
    drafts = (
        ((0, 2, 0), (3, 1, 0)),
        ((5, 0, 1), (0, 0, 6)),
        ((2, 2, 2), (1, 1, 1)),
        ((0, 7, 3), (9, 0, 3)),
        ((4, 0, 0), (0, 4, 0)),
    )
    for right, wrong in drafts:
        assert tuple(row.accepted for row in rows.decode(right, wrong)) == right
        rows.decode((0, 0, 0), (0, 0, 0))
    rows.check()


def test_most_architectures_can_together() -> None:
    """But for those that mlx-lm's batch holds, whose recurrent layers run into the padding, or
    whose rows can't share a batch."""
    together, alone = (
        set(verifying(DraftVerification.TOGETHER)),
        set(verifying(DraftVerification.ALONE)),
    )
    assert {"llama", "gemma3_text", "gpt_oss", "gemma4_text", "deepseek_v3"} <= together
    assert {"qwen3_next", "qwen3_5", "lfm2", "mamba2", "falcon_h1", "granitemoehybrid"} <= together
    assert alone - together == {"deepseek_v32", "nemotron_h", "llama4"}
    assert alone == set(CONFIGS)
