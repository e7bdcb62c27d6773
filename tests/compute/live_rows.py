"""A live batch driven by hand. Its rows have greedy answers, which are known, so that drafts can be
right or wrong at will. They go on behind stop tokens."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import mlx.core as mx

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.prefill import Prefilled
from omlx_server.core.request import RequestId, SampledRow
from omlx_server.core.step import Join, SequenceId
from tests.compute.drive import sampling
from tests.compute.oracle import greedy
from tests.compute.warm_runs import tiny, tokens
from tests.tiny_models import VOCAB

ANSWER = 120
# A draft ends before these.
ENDS = frozenset(range(0, VOCAB, 4))
# How many tokens of a draft are right, and how many behind them are wrong.
TEXTS = ((2, 0), (0, 3), (2, 3))


@dataclass
class LiveRow:
    """The prompt was computed in chunks that began at `starts`; `got` is what came of `answer`."""

    prompt: list[int]
    starts: list[int]
    answer: list[int]
    got: list[int] = field(default_factory=list)

    def draft(self, right: int, wrong: int) -> tuple[int, ...]:
        """So many tokens of the answer, then so many others."""
        coming = self.answer[len(self.got) : len(self.got) + right + wrong]
        return tuple(
            token if at < right else (token + 1) % VOCAB for at, token in enumerate(coming)
        )


class LiveRows:
    """The rows of one batch. `architecture` is that of the model that answers."""

    def __init__(self, loaded: LoadedModel, architecture: str) -> None:
        self.loaded = loaded
        self.batch = LiveBatch(loaded.model, loaded.dims.vocab)
        self.of: dict[SequenceId, LiveRow] = {}
        self._architecture = architecture
        self._names = 0

    @property
    def rows(self) -> list[LiveRow]:
        """In the order of the batch."""
        return [self.of[id] for id in self.batch.ids]

    def join(self, *prompts: tuple[int, int]) -> None:
        """Rows join together. Each prompt has so many tokens, and was computed in two chunks, of
        which the first has so many."""
        arrivals = []
        for length, first in prompts:
            self._names += 1
            id = SequenceId(RequestId(f"r{self._names}"), 0)
            prompt = tokens(length, length)
            row = LiveRow(prompt, [0, first], answer_to(self._architecture, length))
            self.of[id] = row
            join = Join(id, tuple(prompt), length, sampling(ANSWER, stop_ids=ENDS))
            arrivals.append(Prefilled((join,), self._computed(row), solo=True))
        self.batch.join(arrivals)

    def _computed(self, row: LiveRow) -> cache_ops.Caches:
        """The caches of a prompt without its last token."""
        caches = cache_ops.new_caches(self.loaded.model)
        for start, stop in zip(row.starts, [row.starts[1], len(row.prompt) - 1], strict=True):
            if stop > start:
                self.loaded.model(mx.array([row.prompt[start:stop]]), cache=caches)
        cache_ops.evaluate(caches, wait=True)
        return caches

    def leave(self, number: int) -> None:
        self.batch.drop({self.batch.ids[number]})

    def decode(
        self, drafts: Mapping[int, tuple[int, int]], asks: Mapping[int, int]
    ) -> list[SampledRow]:
        """A step in which these rows draft so many right tokens and so many wrong ones behind them,
        and for these the drafter so many. All that is sampled must be right."""
        ids, rows = self.batch.ids, self.rows
        results = self.batch.decode(
            {ids[number]: rows[number].draft(*counts) for number, counts in drafts.items()},
            {ids[number]: count for number, count in asks.items()},
        )
        for row, result in zip(rows, results, strict=True):
            row.got += [token.id for token in result.tokens]
            assert row.got == row.answer[: len(row.got)]
        for number, (right, wrong) in drafts.items():
            assert results[number].drafted == right + wrong
            assert results[number].accepted == right
        return results

    def draft_at_random(self, rng: random.Random) -> list[SampledRow]:
        """A step in which some rows ask the drafter, and some of the others draft by themselves.
        Returns the results of those that asked. Nothing is drafted as long as a row has no state
        yet, which not every model has before the first token."""
        if any(len(row.prompt) == 1 and not row.got for row in self.rows):
            self.decode({}, {})
            return []
        numbers = range(len(self.batch.ids))
        asks = {number: rng.choice((1, 2, 5)) for number in numbers if rng.random() < 0.4}
        drafts = {n: rng.choice(TEXTS) for n in numbers if n not in asks and rng.random() < 0.4}
        results = self.decode(drafts, asks)
        return [results[number] for number in asks]

    def come_and_go(self, rng: random.Random, prompts: Sequence[tuple[int, int]]) -> None:
        """Perhaps rows join, or one leaves. Those leave that are near their end."""
        if len(self.rows) < 2 or (len(self.rows) < 5 and rng.random() < 0.2):
            self.join(*(rng.choice(prompts) for _ in range(rng.choice((1, 2)))))
        elif rng.random() < 0.1:
            self.leave(rng.randrange(len(self.rows)))
        ending = [number for number, row in enumerate(self.rows) if len(row.got) > ANSWER - 10]
        for number in reversed(ending):
            self.leave(number)


@cache
def answer_to(architecture: str, length: int) -> list[int]:
    return greedy(tiny(architecture).model, tokens(length, length), ANSWER)
