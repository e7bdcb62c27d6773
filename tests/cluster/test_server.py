"""A server of two ranks over HTTP answers as a server of one process does: whole and in streams,
from the memory of both ranks and from their cold tiers, also after a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import adapters
from tests.api.harness import (
    UNPROBED,
    Json,
    ServerProcess,
    assert_envelope,
    cached,
    samples,
    serving,
    stream_events,
    text_of,
    wait_idle_soon,
)
from tests.cluster.servers import MODEL, clustered, end, serving_together
from tests.sweeps import wide
from tests.text import makers
from tests.tiny_models import save_tiny

STORY = "Once upon a time a rank was told what the first one did. "
SMALL_BLOCKS = "cache.block_tokens=16"
SMALL_TIER = "cache.hot_cache_max_bytes=128KiB"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": SCHEMA}}
ADAPTER = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": 20.0}}
QUERY = "model.layers.0.self_attn.q_proj"
SHAPES = {f"{QUERY}.lora_a": (64, 4), f"{QUERY}.lora_b": (4, 64)}
ANSWERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 11},
    "penalised": {"temperature": 0.8, "top_p": 0.9, "seed": 3, "frequency_penalty": 0.7},
    "two of them": {"n": 2, "temperature": 1.0, "seed": 5},
    "a grammar": {"response_format": FORMAT, "max_tokens": 60},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
}


@pytest.fixture(scope="module")
def one(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = (f"models.dirs={tiny_models}", UNPROBED, SMALL_BLOCKS)
    with serving("org/tiny", tmp_path_factory.mktemp("one"), *sets) as server:
        yield server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(tiny_models: Path, home: Path) -> Iterator[ServerProcess]:
    """What is in memory of both ranks is a few blocks only. There is an adapter for its model."""
    adapters.write(home / "adapters" / MODEL / "writer", ADAPTER, adapters.matrices(SHAPES, 1))
    directory = f"adapters.directory={home / 'adapters'}"
    with serving_together(tiny_models, home, SMALL_BLOCKS, SMALL_TIER, directory) as server:
        yield server


def said(answer: Json) -> list[Any]:
    """What an answer says, without what is of its time; log-probabilities roughly, since sums of
    two ranks are rounded in another order."""
    found = list[Any]()
    for choice in answer["choices"]:
        logprobs = (choice.get("logprobs") or {}).get("content") or []
        rough = [(each["token"], round(each["logprob"], 2)) for each in logprobs]
        found.append((choice["message"]["content"], choice["finish_reason"], rough))
    return found


@pytest.mark.parametrize("fields", ANSWERS.values(), ids=ANSWERS)
def test_two_ranks_answer_as_one_process(
    one: ServerProcess, two: ServerProcess, fields: Json
) -> None:
    both = [each.chat("Tell me.", **{"max_tokens": 12, **fields}) for each in (one, two)]
    assert said(both[0]) == said(both[1])


def test_a_stream_says_what_a_whole_answer_says(two: ServerProcess) -> None:
    whole = text_of(two.chat(STORY, max_tokens=12, ignore_eos=True))
    events = stream_events(
        two.post(two.body(STORY, max_tokens=12, ignore_eos=True, stream=True)).text
    )
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in events) == whole


def test_the_prompts_own_log_probabilities_are_those_of_one_process(
    one: ServerProcess, two: ServerProcess
) -> None:
    body = {"model": "org/tiny", "prompt": STORY, "max_tokens": 2, "echo": True, "logprobs": 1}
    found = [
        each.http.post(f"{each.url}/v1/completions", json={**body, "temperature": 0}).json()
        for each in (one, two)
    ]
    numbers = [each["choices"][0]["logprobs"]["token_logprobs"] for each in found]
    assert found[0]["choices"][0]["text"] == found[1]["choices"][0]["text"]
    assert numbers[0][1:] == pytest.approx(numbers[1][1:], abs=1e-3)


def test_who_leaves_is_computed_no_further(two: ServerProcess) -> None:
    body = two.body("Go on.", max_tokens=3000, ignore_eos=True, stream=True)
    with two.http.stream("POST", f"{two.url}/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    wait_idle_soon(two)


def test_a_second_turn_reuses_the_first_and_answers_as_without(
    one: ServerProcess, two: ServerProcess
) -> None:
    asked = [{"role": "user", "content": STORY * 2}]
    answers = list[Json]()
    for turn in range(2):
        body = {"model": "org/tiny", "messages": asked, "max_tokens": 8, "temperature": 0}
        answers = [each.post({**body, "ignore_eos": True}).json() for each in (two, one)]
        assert said(answers[0]) == said(answers[1]), f"turn {turn}"
        content = text_of(answers[0])
        asked = [*asked, {"role": "assistant", "content": content}, *asked[:1]]
    assert cached(answers[0]) >= 96


def test_what_is_evicted_comes_back_from_the_cold_tiers_of_both_ranks(
    one: ServerProcess, two: ServerProcess
) -> None:
    first = two.chat("Evict me. " + STORY * 3, max_tokens=8, ignore_eos=True)
    for number in range(6):
        two.chat(f"{number}. " + STORY * 3, max_tokens=2)
    before = cold_tokens(two)
    again = two.chat("Evict me. " + STORY * 3, max_tokens=8, ignore_eos=True)
    assert cached(again) >= 128 and cold_tokens(two) > before
    assert said(again) == said(first)
    assert said(again) == said(one.chat("Evict me. " + STORY * 3, max_tokens=8, ignore_eos=True))


def cold_tokens(server: ServerProcess) -> float:
    """The prompt tokens that came from the cold tiers."""
    found = samples(server.http.get(f"{server.url}/metrics").text)
    return found['omlx_cache_hit_tokens_total{tier="cold"}']


def test_a_reset_forgets_what_all_ranks_have(two: ServerProcess) -> None:
    text = "Forget me. " + STORY * 2
    first = two.chat(text, max_tokens=8, ignore_eos=True)
    assert cached(two.chat(text, max_tokens=2)) >= 96
    assert two.http.post(f"{two.url}/v1/cache/reset").status_code == 200
    after = two.chat(text, max_tokens=8, ignore_eos=True)
    assert cached(after) == 0 and said(after) == said(first)


def test_archives_are_refused(two: ServerProcess) -> None:
    body = two.body(STORY)
    refused = two.http.post(f"{two.url}/v1/cache/export", json=body)
    assert "several machines" in assert_envelope(refused, 400)["message"]
    refused = two.http.post(f"{two.url}/v1/cache/import", content=b"x" * 2000)
    assert "several machines" in assert_envelope(refused, 400)["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_adapters_are_refused(two: ServerProcess, *, stream: bool) -> None:
    assert "org/tiny:writer" in two.http.get(f"{two.url}/v1/models").text
    refused = two.post(two.body(STORY, adapter="writer", stream=stream))
    error = assert_envelope(refused, 400)
    assert error["code"] == "adapter_unusable" and "several machines" in error["message"]
    assert text_of(two.chat(STORY, max_tokens=4, ignore_eos=True))


def test_after_a_restart_the_cold_tiers_of_both_ranks_serve(
    two: ServerProcess, tiny_models: Path, home: Path
) -> None:
    """The last one for the first server: it ends here."""
    text = "Keep me. " + STORY * 3
    first = two.chat(text, max_tokens=8, ignore_eos=True)
    two.stop()
    with serving_together(tiny_models, home, SMALL_BLOCKS, SMALL_TIER) as server:
        again = server.chat(text, max_tokens=8, ignore_eos=True)
        assert cached(again) >= 128
        assert said(again) == said(first)


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("llama", {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}, "3 "),
        *wide([("mamba", {}, "can't be split over machines")]),
    ],
)
def test_a_model_that_cannot_be_split_ends_the_start_with_one_line(
    tmp_path: Path, architecture: str, changes: Json, words: str
) -> None:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    path = makers.save(tmp_path / "models" / "org" / "odd", "byte_level")
    save_tiny(path, architecture, vocab_size=vocab, **changes)
    server = clustered(tmp_path / "models", tmp_path / "home", model="org/odd")
    try:
        assert server.wait() == 1
        assert words in server.log and "Traceback" not in server.log
    finally:
        end(server)
