"""A forward in parts gives what a whole one does."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.forward_parts import ForwardParts, decoder_layers
from omlx_server.compute.hardware import device
from omlx_server.core import dispatch_limit
from omlx_server.core.chunk_sizes import ChunkPace
from omlx_server.core.dispatch_limit import DispatchLimit
from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.step import Chunk, SequenceId
from tests.arrays import plain
from tests.compute.warm_runs import every_kind, tiny, tokens
from tests.engine.alone import Alone
from tests.engine.running import LIMITS, Running, collect, make_instance, request
from tests.tiny_models import CONFIGS

PROMPT = tuple(tokens("parts", 150))
KEYS = 16


def slow_limit(layers: int) -> DispatchLimit:
    """Every layer is too long for it, and the attention of all but the first keys."""
    return DispatchLimit(0.1, ChunkPace(layers, layers, ((1, 0.01), (64, 0.02)), ((0.0, 1.0),)))


@pytest.fixture(autouse=True)
def _few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_limit, "_FEWEST_KEYS", KEYS)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The arrays of each launch."""
    sizes, launch = list[int](), device.launch

    def counted(*arrays: Any) -> None:
        sizes.append(len(arrays))
        launch(*arrays)

    monkeypatch.setattr(device, "launch", counted)
    return sizes


def logits_of(model: nn.Module, sizes: Sequence[int], parts: ForwardParts) -> mx.array:
    """The logits of PROMPT's last token, after chunks of `sizes`."""
    caches, start = cache_ops.new_caches(model), 0
    for size in sizes:
        chunk = Chunk(SequenceId(RequestId("a"), 0), start, PROMPT[start : start + size], ())
        with parts.of_chunks([chunk]):
            logits: mx.array = model(mx.array([chunk.tokens]), cache=caches)
        start += size
    assert start == len(PROMPT)
    return logits[0, -1].astype(mx.float32)


@every_kind(CONFIGS)
def test_chunks_in_parts_have_the_logits_of_one_whole_chunk(
    architecture: str, launches: list[int]
) -> None:
    model = tiny(architecture).model
    parts = ForwardParts(model)
    whole = logits_of(model, [len(PROMPT)], parts)
    mx.eval(whole)
    launches.clear()
    parts.limit = slow_limit(len(decoder_layers(model)))
    calls = {type(layer): type(layer).__call__ for layer in decoder_layers(model)}
    in_parts = logits_of(model, [64, 64, 22], parts)
    assert plain(mx.abs(in_parts - whole).max()) < 1e-4
    assert len(launches) >= 3 * len(decoder_layers(model)) > 0
    assert all(layer.__call__ is call for layer, call in calls.items())


def test_attention_is_divided_by_keys(launches: list[int]) -> None:
    model = tiny("llama").model
    parts = ForwardParts(model)
    parts.limit = slow_limit(len(decoder_layers(model)))
    mx.eval(logits_of(model, [64, 64, 22], parts))
    # Three arrays of each part of the keys, beside one of each layer.
    assert launches.count(3) > 2 * launches.count(1)


def test_a_limit_that_all_layers_keep_changes_nothing(launches: list[int]) -> None:
    model = tiny("llama").model
    parts = ForwardParts(model)
    parts.limit = DispatchLimit(10.0, ChunkPace(2, 2, ((1, 0.01), (256, 0.1)), ((0.0, 0.0),)))
    mx.eval(logits_of(model, [len(PROMPT)], parts))
    assert not launches


def test_what_steps_took_corrects_the_groups_of_layers(launches: list[int]) -> None:
    model = tiny("llama").model
    parts = ForwardParts(model)
    pace = ChunkPace(2, 2, ((1, 0.01), (256, 0.08)), ((0.0, 0.0),))
    parts.limit = DispatchLimit(0.1, pace)
    chunk = Chunk(SequenceId(RequestId("a"), 0), 0, PROMPT, ())
    for _ in range(20):
        parts.note_chunks([(chunk,)], 10.0)
    mx.eval(logits_of(model, [len(PROMPT)], parts))
    assert len(launches) == 2


async def answers(limits: SchedulerLimits, architecture: str) -> list[list[int]]:
    prompts = [PROMPT, PROMPT[:90], (*PROMPT[:70], 3, 4)]

    async def ask(engine: Alone, number: int) -> list[int]:
        return await collect(await engine.submit(request(f"r{number}", prompts[number], 12)))

    async with Running(lambda: make_instance(tiny(architecture), limits)) as engine:
        return [await ask(engine, number) for number in (0, 1, 2, 0)]


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next"])
def test_an_engine_answers_in_parts_as_it_does_at_once(
    architecture: str, launches: list[int]
) -> None:
    at_once = asyncio.run(answers(LIMITS, architecture))
    few = len(launches)
    limit = slow_limit(len(decoder_layers(tiny(architecture).model)))
    in_parts = asyncio.run(answers(replace(LIMITS, dispatch=limit), architecture))
    assert in_parts == at_once
    assert len(launches) > 2 * few
