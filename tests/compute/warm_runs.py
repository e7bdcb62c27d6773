"""Tiny models, and runs that begin from what is cached."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import greedy, is_greedy
from tests.sweeps import daily
from tests.tiny_models import VOCAB, load_tiny

PROMPT = 37
ANSWER = 28
AHEAD = 20
SOON = 4
LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=32, max_batched_tokens=64)
HYBRIDS = (
    "qwen3_next",
    "qwen3_5",
    "mamba2",
    "lfm2",
    "nemotron_h",
    "granitemoehybrid",
    "falcon_h1",
)
RINGS = ("llama_sliding", "gemma3_text", "gemma3n", "gemma4_text", "gpt_oss", "llama4")
ONE_OF_EACH_KIND = ("llama", "gemma3_text", "qwen3_next", "falcon_h1", "llama4")


def every_kind(architectures: Iterable[str]) -> pytest.MarkDecorator:
    """Every day one architecture of each kind of cache, with `--wide` all of them."""
    return pytest.mark.parametrize("architecture", daily(architectures, ONE_OF_EACH_KIND))


@cache
def tiny(architecture: str) -> LoadedModel:
    return load_tiny(architecture)


def tokens(seed: object, count: int) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randrange(VOCAB) for _ in range(count)]


@dataclass(frozen=True)
class Story:
    """A prompt and its greedy answer, from the cold model."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def told(self) -> tuple[int, ...]:
        return self.prompt + self.answer


@cache
def story(architecture: str, prompt_length: int) -> Story:
    prompt = tokens(architecture, prompt_length)
    answer = greedy(tiny(architecture).model, prompt, ANSWER)
    return Story(tuple(prompt), tuple(answer))


def tell(drive: Drive, told: Story) -> None:
    """Let the instance store the story: the prompt in chunks, the answer token by token."""
    assert drive.answer("story", told.prompt, ANSWER) == list(told.answer)


def check_prefixes(
    drive: Drive, told: Story, lengths: Iterable[int], rng: random.Random, name: str = "p"
) -> None:
    """Ask for these prefixes, some at a time, beside a stranger; all answers must be cold ones.
    Each third is long enough to wrap a ring."""
    asked = list(lengths)
    wanted = {length: SOON if length % 3 else AHEAD for length in asked}
    drive.add(f"{name}-stranger", tokens(name, 21), sampling(30))
    for length in asked:
        drive.add(f"{name}{length}", told.told[:length], sampling(wanted[length]))
        for _ in range(rng.choice([0, 0, 1, 3])):
            drive.step()
    drive.finish()
    answers = {length: drive.answers[f"{name}{length}/0"] for length in asked}
    assert {length: len(answer) for length, answer in answers.items()} == wanted
    model = drive.loaded.model
    wrong = [n for n, answer in answers.items() if not is_greedy(model, told.told[:n], answer)]
    assert not wrong, f"warm is not cold after {wrong} tokens"


# -- logits ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cold:
    """One cold run on a grid: logits of every token, and what was cut on the way."""

    logits: mx.array
    blocks: list[Payload]
    states: dict[int, Payload]


GRID = 32
PREFILLED = 3 * GRID
DECODED = 24


def cold_run(model: nn.Module, codec: BlockCodec, sequence: Sequence[int]) -> Cold:
    """Chunks of the grid, then tokens one by one, cutting as the runner does."""
    caches = cache_ops.new_caches(model)
    size = codec.layout.block_size
    grid = [*range(GRID, PREFILLED + 1, GRID), *range(PREFILLED + 1, PREFILLED + DECODED + 1)]
    logits, blocks, states, at = [], list[Payload](), {}, 0
    for stop in grid:
        logits.append(model(mx.array([sequence[at:stop]]), cache=caches)[0])
        row = CacheRow(0, stop)
        for end in range((at // size + 1) * size, stop + 1, size):
            blocks.append(codec.cut_block(caches, row, end - size, end))
        states[stop] = codec.cut_checkpoint(caches, row)
        mx.eval(logits[-1], [b.buffers for b in blocks], states[stop].buffers)
        at = stop
    rest = at - at % size
    blocks.append(codec.cut_block(caches, CacheRow(0, at), rest, at))
    return Cold(mx.concatenate(logits), blocks, states)


def restored(codec: BlockCodec, cold: Cold, stop: int) -> Caches:
    size = codec.layout.block_size
    blocks = cold.blocks[: -(-stop // size)]
    return codec.join(blocks, cold.states.get(stop), stop)
