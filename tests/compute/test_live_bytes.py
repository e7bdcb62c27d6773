"""What the planner says that live caches hold, against the caches of prompts and of a batch that
rows join, outgrow and leave."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.batch import LiveBatch
from omlx_server.compute.caches import Caches
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.probe import filled_caches, one_token_caches
from omlx_server.compute.prefill import Prefilled
from omlx_server.core.memory.kv import GROWTH, Keeps, ModelShape
from omlx_server.core.request import RequestId, SamplingParams
from omlx_server.core.step import Join, SequenceId
from tests.compute.held import MODELS, held, planned


def read(loaded: LoadedModel, tokens: int, chunk: int = 512) -> Caches:
    caches = cache_ops.new_caches(loaded.model)
    for start in range(0, tokens, chunk):
        feed(loaded, caches, min(chunk, tokens - start))
    return caches


def feed(loaded: LoadedModel, caches: Caches, tokens: int) -> None:
    loaded.model(mx.zeros((1, tokens), dtype=mx.int32), cache=caches)
    cache_ops.evaluate(caches, wait=True)


def arrival(loaded: LoadedModel, number: int, tokens: int) -> Prefilled:
    id = SequenceId(RequestId(f"row-{number}"), 0)
    join = Join(id, (0,) * (tokens + 1), 9999, SamplingParams(max_tokens=9999, temperature=0))
    return Prefilled((join,), read(loaded, tokens), solo=True)


def places_of(model: ModelShape, rows: int) -> int:
    """Bytes of as many places as buffers grow by, in all layers that grow."""
    kept = [layer for layer in model.layers if layer.keeps is not Keeps.CONSTANT]
    return rows * GROWTH * sum(layer.nbytes * layer.count for layer in kept)


class Rows:
    """A batch, and of each row how many tokens it holds."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.batch = LiveBatch(loaded.model, loaded.dims.vocab)
        self.lengths: list[int] = []

    def come(self, *lengths: int) -> None:
        first = len(self.lengths) + 100 * sum(self.lengths)
        self.batch.join([arrival(self.loaded, first + i, n) for i, n in enumerate(lengths)])
        self.lengths += lengths

    def decode(self, times: int) -> None:
        for _ in range(times):
            self.batch.decode()
        self.lengths = [length + times for length in self.lengths]

    def keep(self, count: int) -> None:
        self.batch.drop(self.batch.ids[count:])
        self.lengths = self.lengths[:count]

    def after_each_event(self) -> Iterator[str]:
        self.come(100)
        self.decode(1)
        yield "a lone row"
        self.come(200, 255)
        self.decode(1)
        yield "others have come"
        self.decode(255)
        yield "all are at the edge of what they have room for"
        self.decode(1)
        yield "and past it"
        self.come(700)
        self.decode(1)
        yield "a longer one has come"
        self.keep(3)
        self.decode(1)
        yield "the longest has left"
        self.keep(1)
        self.decode(1)
        yield "one is left of a batch"


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_holds_what_was_said_whatever_it_went_through(name: str) -> None:
    loaded, planner = planned(name)
    rows = Rows(loaded)
    for event in rows.after_each_event():
        count, real = len(rows.lengths), held(rows.batch.caches)
        said = planner.live(rows.lengths)
        assert real <= said <= real + places_of(planner.model, count), event


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tokens", [1, 255, 256, 512, 513, 900])
def test_a_prompt_under_way_holds_what_was_said(name: str, tokens: int) -> None:
    loaded, planner = planned(name)
    real = held(read(loaded, tokens))
    said = planner.live([], [tokens])
    assert real <= said
    if name != "gemma3_text":  # what its rings hold depends on the last chunk
        assert said <= real + places_of(planner.model, 1)


def test_a_ring_of_a_prompt_holds_the_longest_chunk() -> None:
    loaded, planner = planned("gemma3_text")
    caches = read(loaded, 512)
    feed(loaded, caches, 576)
    assert held(caches) <= planner.live([], [1088]) <= held(caches) + 4 * GROWTH * 256


@pytest.mark.parametrize("name", MODELS)
def test_a_long_batch_is_known_to_some_percent(name: str) -> None:
    loaded, planner = planned(name)
    short = one_token_caches(loaded.model)
    batch = cache_ops.merge([filled_caches(loaded.model, n, 256, short) for n in (4000, 4090)])
    for _ in range(8):
        loaded.model(mx.zeros((2, 1), dtype=mx.int32), cache=batch)
        cache_ops.evaluate(batch, wait=True)
    assert 1.0 <= planner.live([4008, 4098]) / held(batch) < 1.07


def test_live_is_the_sum_of_what_lives() -> None:
    _, planner = planned("qwen3_next")
    together = planner.live([700] * 3, [90, 4000])
    rows, prompts = planner.live([700] * 3), planner.live([], [90]) + planner.live([], [4000])
    assert together == rows + prompts
    assert planner.live([]) == planner.live([], [0]) == 0
