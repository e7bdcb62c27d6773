"""Architectures that need more than their cache classes tell: what they answer in company, out of
the cache and after a single token is what mlx-lm's own caches give, which read a prompt in one
forward and know of nobody else.

`scripts/campaign architectures` asks this of every architecture, over HTTP.
"""

import random
from collections.abc import Sequence
from functools import cache

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.request import TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from tests.arrays import plain
from tests.compute.drive import Drive, sampling
from tests.tiny_models import VOCAB, load_tiny

CHUNK, BLOCK, TOKENS = 32, 16, 16
LIMITS = SchedulerLimits(max_batch_size=8, prefill_chunk_tokens=CHUNK, max_batched_tokens=128)
ALONE = ("afm7", "deepseek_v41", "gpt_bigcode", "minimax_m3_vl")
TOGETHER = ("gemma2", "plamo3", "recurrent_gemma", "gemma3_text", "mamba2", "falcon_h1")
Prompt = tuple[int, ...]


@cache
def tiny(name: str) -> LoadedModel:
    return load_tiny(name)


def words(seed: str, count: int) -> Prompt:
    dice = random.Random(seed)
    return tuple(dice.randrange(1, VOCAB) for _ in range(count))


def naive(name: str, prompt: Prompt, answer: Sequence[int]) -> tuple[list[int], list[float]]:
    """What mlx-lm finds likeliest after each token of that answer, and how likely it finds the
    tokens of the answer."""
    model = tiny(name).model
    caches = make_prompt_cache(model)
    if len(prompt) > 1:
        model(mx.array([prompt[:-1]]), cache=caches)
    likeliest, logprobs, last = [], [], prompt[-1]
    for token in answer:
        logits = model(mx.array([[last]]), cache=caches)[0, -1]
        likeliest.append(plain(mx.argmax(logits)))
        logprobs.append(plain((logits - mx.logsumexp(logits))[token]))
        last = token
    return likeliest, logprobs


class Asked(Drive):
    """Prompts asked one after the other, or while others are at work."""

    def __init__(self, name: str) -> None:
        super().__init__(tiny(name), LIMITS, BLOCK)
        self.prompts: dict[str, Prompt] = {}
        self.logprobs: dict[str, list[float]] = {}
        self.name = name

    def ask(self, *prompts: Prompt, apart: bool = False) -> None:
        dice = random.Random(self.name)
        for prompt in prompts:
            id = f"r{len(self.prompts)}"
            self.prompts[id] = prompt
            self.add(id, prompt, sampling(TOKENS, top_logprobs=0))
            for _ in range(dice.choice([0, 0, 1, 3])):
                self.step()
            if apart:
                self.finish()
        self.finish()

    def check(self) -> None:
        for id, prompt in self.prompts.items():
            answer = self.answers[f"{id}/0"]
            likeliest, logprobs = naive(self.name, prompt, answer)
            assert answer == likeliest, f"{len(prompt)} tokens"
            assert self.logprobs[id] == pytest.approx(logprobs, abs=1e-3), f"{len(prompt)} tokens"

    def seen(self, event: TokenEvent) -> None:
        if event.logprobs is not None:
            self.logprobs.setdefault(event.request_id, []).append(event.logprobs.chosen)


@pytest.fixture(params=[*ALONE, *TOGETHER])
def asked(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


def test_in_any_company(asked: Asked) -> None:
    asked.ask(*(words(f"in company {n}", length) for n, length in enumerate((70, 1, 33, 2, 96, 1))))
    asked.check()


def test_out_of_the_cache(asked: Asked) -> None:
    stem = words("stem", 90)
    asked.ask(stem, stem, (*stem, *words("a", 5)), (*stem[:70], *words("b", 20)), apart=True)
    asked.ask((*stem[:33], *words("c", 50)), (*stem[:64], 7), (7,), (*stem, *words("d", 40)))
    asked.check()
    if asked.instance.cache.layout.kinds:
        cached = [asked.admitted[id].cached for id in asked.prompts]
        assert not cached[0] and all(cached[at] >= 64 for at in (1, 2, 7)), cached


def test_the_next_turn(asked: Asked) -> None:
    stem = words("turns", 40)
    asked.ask(stem, apart=True)
    told = (*stem, *asked.answers["r0/0"])
    asked.ask((*told, *words("next", 9)), (*told[:-5], *words("other", 30)), apart=True)
    asked.check()


def test_the_first_token_of_several_choices_beside_others() -> None:
    """recurrent_gemma begins with something else than a state of zeros."""
    asked = Asked("recurrent_gemma")
    asked.add("long", words("long", 40), sampling(20))
    for _ in range(6):
        asked.step()
    asked.add("first", (5,), sampling(TOKENS, top_logprobs=0), n=3)
    asked.add("gone", (6,), sampling(TOKENS))
    asked.step()
    asked.cancel("gone")
    asked.finish()
    for choice in range(3):
        answer = asked.answers[f"first/{choice}"]
        assert answer == naive("recurrent_gemma", (5,), answer)[0]


@pytest.mark.parametrize("name", ALONE)
def test_who_can_not_share_a_batch_says_why(name: str) -> None:
    assert cache_ops.why_alone(tiny(name).model)


@pytest.mark.parametrize("name", TOGETHER)
def test_who_can_share_a_batch_does(name: str) -> None:
    assert not cache_ops.why_alone(tiny(name).model)


def test_what_a_narrower_decode_leaves_is_not_stored() -> None:
    """plamo3 looks back one token more when it reads a prompt."""
    asked = Asked("plamo3")
    asked.ask(words("plamo", 40))
    assert asked.instance.cache.layout.stores_decoded is False
    assert max(block.stop for block in asked.instance.cache.index.blocks()) <= 40
