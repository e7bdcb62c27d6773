"""A whole engine with experts that stay on the disk: batches, the cache, evictions of experts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx_server.compute.model.loader import LoadedModel, load
from tests.compute.experts.on_disk import loaded_on_disk, quantised_tiny
from tests.engine.running import Running, collect, make_instance, request
from tests.tiny_models import save_tiny

PREFIX = list(range(20, 60))
PROMPTS = [[*PREFIX, *range(60 + 3 * i, 75 + 5 * i)] for i in range(4)] + [[7, 8, 9]]


async def answers(loading: Callable[[], LoadedModel]) -> list[list[int]]:
    """The tokens of all prompts together, and again, then one alone."""
    async with Running(lambda: make_instance(loading())) as engine:
        tokens = list[list[int]]()
        for turn in range(2):
            generations = [
                await engine.submit(request(f"{turn}-{i}", prompt, 10))
                for i, prompt in enumerate(PROMPTS)
            ]
            tokens += await asyncio.gather(*map(collect, generations))
        tokens.append(await collect(await engine.submit(request("alone", PROMPTS[1], 10))))
        assert engine.status.counted.cache.hit_tokens > len(PREFIX)
        return tokens


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "qwen3_next", "4-bit"])
def test_tokens_are_those_of_the_whole_model(family: str, slots: int, tmp_path: Path) -> None:
    if family == "4-bit":
        quantised_tiny(tmp_path, "qwen3_moe", "affine")
    else:
        save_tiny(tmp_path, family)
    expected = asyncio.run(answers(lambda: load(tmp_path)))
    assert expected[: len(PROMPTS)] == expected[len(PROMPTS) : -1]
    assert asyncio.run(answers(lambda: loaded_on_disk(tmp_path, slots))) == expected
