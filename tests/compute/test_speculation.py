"""Drafts change no answer: random requests of every kind, with drafts and without, on every cache
class. And what was drafted wrongly leaves no trace."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.caches import Caches
from omlx_server.compute.drafting.base import Drafted, Drafter
from omlx_server.compute.drafting.heads_drafter import HeadsDrafter
from omlx_server.compute.drafting.model_drafter import ModelDrafter
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.model.pairing import paired
from omlx_server.compute.sampler import Row
from omlx_server.core.request import TokenEvent
from omlx_server.core.scheduler.limits import Limits
from omlx_server.core.speculation.methods import Mode
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.headed import HEADED, headed
from tests.compute.kv.models import quantised
from tests.compute.kv.schemes import every_kind
from tests.compute.templates import Template, form
from tests.compute.warm_runs import tiny, tokens
from tests.tiny_models import CONFIGS, VOCAB

pytestmark = pytest.mark.usefixtures("either_order")

BLOCK = 16
WITHOUT = replace(LIMITS, speculation="off")


class Told(Drive):
    """Notes the log-probabilities of all tokens."""

    def __init__(self, loaded: LoadedModel, *args: Any) -> None:
        super().__init__(loaded, *args)
        self.logprobs: dict[str, list[Any]] = {}

    def seen(self, event: TokenEvent) -> None:
        if event.logprobs is not None:
            name = f"{event.request_id}/{event.index}"
            self.logprobs.setdefault(name, []).append((event.token, event.logprobs))


def prompt_of(rng: random.Random) -> list[int]:
    """Text that repeats itself, and sometimes the beginning of another prompt."""
    seed = rng.randrange(3)
    piece = tokens(f"piece {seed}", rng.choice((3, 7, 12)))
    return [*tokens(f"head {seed}", rng.choice((5, 20, 40))), *piece * rng.choice((1, 2, 4))]


def params_of(rng: random.Random) -> dict[str, Any]:
    """Of one of many kinds of requests."""
    changes: dict[str, Any] = {
        "temperature": rng.choice((0, 0, 0.3, 1.0)),
        "seed": rng.randrange(9),
    }
    if rng.random() < 0.3:
        changes["repetition_penalty"] = rng.choice((0.5, 1.3))
        changes["frequency_penalty"] = rng.choice((-0.5, 0.0, 0.4))
    if rng.random() < 0.3:
        changes["logit_bias"] = tuple((rng.randrange(VOCAB), 4.0) for _ in range(3))
    if rng.random() < 0.3:
        changes["top_logprobs"] = rng.choice((0, 3))
    if rng.random() < 0.3:
        changes["stop_ids"] = frozenset(rng.sample(range(VOCAB), 4))
        changes["min_tokens"] = rng.choice((0, 9))
    if rng.random() < 0.3:
        changes |= {"top_k": rng.choice((0, 4)), "top_p": 0.9, "min_p": rng.choice((0, 0.05))}
    return changes


def requests(rng: random.Random, count: int) -> Iterator[tuple[str, list[int], dict[str, Any]]]:
    for number in range(count):
        params = sampling(rng.choice((1, 2, 9, 30)), **params_of(rng))
        more: dict[str, Any] = {"n": rng.choice((1, 1, 1, 3))}
        if rng.random() < 0.3:
            more["constraint"] = Template(form(number))
            params = replace(params, stop_ids=frozenset(), logit_bias=())
        yield f"r{number}", prompt_of(rng), {"params": params, **more}


def run(loaded: LoadedModel, seed: int, limits: Limits) -> Told:
    """Nine requests at random times, with strangers that join, leave and are cancelled."""
    rng = random.Random(seed)
    asked = list(requests(rng, 9))
    drive = Told(loaded, limits, BLOCK)
    for name, prompt, request in asked:
        drive.add(name, prompt, **request)
        stranger = f"s{name}"
        if rng.random() < 0.5:
            drive.add(stranger, prompt_of(rng), sampling(rng.choice((3, 40))))
        for _ in range(rng.choice((0, 1, 5, 20))):
            drive.step()
        if rng.random() < 0.3:
            drive.cancel(stranger)
        if rng.random() < 0.1:
            drive.lose()
    drive.finish()
    return drive


def of_requests(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name.startswith("r")}


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_answers_are_the_same_with_drafts_and_without(architecture: str, seed: int) -> None:
    check(tiny(architecture), seed)


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
@every_kind
def test_so_they_are_with_keys_and_values_in_few_bits(architecture: str, scheme: Scheme) -> None:
    check(quantised(architecture, scheme), 5)


# Drafts that are all right, that are hardly ever right, and of every kind of cache.
PAIRS = (
    ("llama", "llama"),
    ("llama", "qwen3"),
    ("llama", "gemma3_text"),
    ("llama", "qwen3_next"),
    ("gemma3_text", "gemma3_text"),
    ("qwen3_next", "llama"),
    ("qwen3_next", "qwen3_next"),
    ("deepseek_v3", "llama"),
)


@pytest.mark.parametrize("drafting", ["auto", "draft"])
@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_so_they_are_with_a_draft_model(target: str, drafter: str, drafting: Mode) -> None:
    check(paired(tiny(target), tiny(drafter)), 3, replace(LIMITS, speculation=drafting))


@every_kind
def test_so_they_are_with_a_draft_model_beside_few_bits(scheme: Scheme) -> None:
    pair = paired(quantised("llama", scheme), tiny("llama"))
    check(pair, 5, replace(LIMITS, speculation="draft"))


@pytest.mark.parametrize("architecture", HEADED)
def test_so_they_are_with_heads(architecture: str) -> None:
    check(headed(architecture), 1, replace(LIMITS, speculation="heads"))


def of_one_token(loaded: LoadedModel, drafting: Mode) -> dict[str, list[int]]:
    """Three answers to a prompt of one token."""
    drive = Drive(loaded, replace(LIMITS, speculation=drafting), BLOCK)
    drive.add("r", tokens("one", 1), sampling(12, temperature=1.0), n=3)
    drive.finish()
    assert drive.instance.speculation is not None
    assert (drive.instance.speculation.counts.drafted.total() > 0) == (drafting != "off")
    return drive.answers


def half_right(
    monkeypatch: pytest.MonkeyPatch, drafter: type[Drafter], answers: dict[str, list[int]]
) -> None:
    """It drafts one or two tokens, all right for one choice, and all wrong for the next."""
    draft = drafter.draft

    def known(
        self: Drafter, newest: mx.array, rows: Sequence[Row], counts: Sequence[int], caches: Caches
    ) -> Drafted:
        found = []
        for row, count in zip(rows, counts, strict=True):
            coming = answers[f"{row.id.request}/{row.id.choice}"][row.position - 1 :][
                : min(count, 2)
            ]
            found.append(tuple((token + row.id.choice % 2) % VOCAB for token in coming))
        return replace(draft(self, newest, rows, counts, caches), tokens=found)

    monkeypatch.setattr(drafter, "draft", known)


@pytest.mark.parametrize("target", ["qwen3_next", "falcon_h1", "llama"])
def test_so_they_are_to_one_token(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing yet that recurrent layers could go back to."""
    loaded = paired(tiny(target), tiny("llama"))
    expected = of_one_token(loaded, "off")
    half_right(monkeypatch, ModelDrafter, expected)
    assert of_one_token(loaded, "draft") == expected


def test_so_they_are_to_one_token_with_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = headed("qwen3_5")
    expected = of_one_token(loaded, "off")
    half_right(monkeypatch, HeadsDrafter, expected)
    assert of_one_token(loaded, "heads") == expected


def check(loaded: LoadedModel, seed: int, limits: Limits = LIMITS) -> None:
    drafted, plain = (run(loaded, seed, limits) for limits in (limits, WITHOUT))
    assert of_requests(drafted.answers) == of_requests(plain.answers)
    assert of_requests(drafted.ends) == of_requests(plain.ends)
    told, expected = of_requests(drafted.logprobs), of_requests(plain.logprobs)
    assert told.keys() == expected.keys()
    for name in told:
        for (token, mine), (same, theirs) in zip(told[name], expected[name], strict=True):
            assert token == same
            assert mine.chosen == pytest.approx(theirs.chosen, abs=1e-4)
            assert [v for _, v in mine.top] == pytest.approx([v for _, v in theirs.top], abs=1e-4)
