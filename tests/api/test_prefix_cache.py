"""What clients see of the prefix cache: usage, headers, probe, reset, salts, metrics."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.harness import (
    CHAT,
    UNPROBED,
    Json,
    ServerProcess,
    assert_envelope,
    busy,
    cached,
    samples,
    serving,
    stream_events,
    text_of,
    wait_for,
)

STORY = "Once upon a time there was a server that never forgot a word it was told. " * 8


@pytest.fixture
def fresh(tiny: ServerProcess) -> ServerProcess:
    """The shared server with nothing in its cache."""
    tiny.wait_idle()
    response = tiny.http.post(f"{tiny.url}/v1/cache/reset", json={})
    assert response.status_code == 200
    return tiny


def prompt_tokens(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens"])


def probe(server: ServerProcess, content: str, **fields: Any) -> Json:
    response = server.http.post(f"{server.url}/v1/cache/probe", json=server.body(content, **fields))
    assert response.status_code == 200, response.text
    found: Json = response.json()
    return found


def metric(server: ServerProcess, name: str) -> float:
    return samples(server.http.get(f"{server.url}/metrics").text)[name]


def test_a_repeated_prompt_computes_one_token_and_answers_the_same(fresh: ServerProcess) -> None:
    cold = fresh.chat(STORY, max_tokens=12)
    warm = fresh.chat(STORY, max_tokens=12)
    assert cached(cold) == 0
    assert cached(warm) == prompt_tokens(warm) - 1
    assert text_of(warm) == text_of(cold)


def test_a_prompt_that_diverges_keeps_what_it_shares(fresh: ServerProcess) -> None:
    fresh.chat(STORY + "The end.", max_tokens=4)
    known = fresh.chat(STORY + "But then", max_tokens=4)
    rest = prompt_tokens(known) - cached(known)
    assert rest < 40 < cached(known)


def test_a_growing_conversation_computes_its_new_turn_only(fresh: ServerProcess) -> None:
    messages: list[Json] = []
    before = 0
    for turn in range(5):
        messages.append({"role": "user", "content": f"Turn {turn}: {STORY[:200]}"})
        body = {"model": fresh.model, "messages": messages, "temperature": 0, "max_tokens": 16}
        answer = fresh.post(body).json()
        messages.append({"role": "assistant", "content": text_of(answer)})
        if turn:
            # What the last answer was made of may tokenize otherwise when it comes back as text.
            assert cached(answer) >= before - 1
        before = prompt_tokens(answer)


def test_headers_tell_hits_and_why_it_was_a_miss(fresh: ServerProcess) -> None:
    first = fresh.post(fresh.body(STORY, max_tokens=2))
    assert first.headers["x-omlx-cached-tokens"] == "0"
    assert first.headers["x-omlx-cache-miss"].startswith("new_prefix")
    again = fresh.post(fresh.body(STORY, max_tokens=2))
    assert again.headers["x-omlx-cached-tokens"] == str(prompt_tokens(again.json()) - 1)
    assert "x-omlx-cache-miss" not in again.headers
    other = fresh.post(fresh.body(STORY[:300] + "suddenly", max_tokens=2))
    known = int(other.headers["x-omlx-cached-tokens"])
    assert other.headers["x-omlx-cache-miss"] == f"diverged; known-tokens={known}"


BODIES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": STORY}], "max_tokens": 2},
    "/v1/completions": {"prompt": STORY, "max_tokens": 2},
    "/v1/responses": {"input": STORY, "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": STORY}], "max_tokens": 2},
    "/api/chat": {"messages": [{"role": "user", "content": STORY}], "stream": False},
    "/api/generate": {"prompt": STORY, "stream": False},
}


@pytest.mark.parametrize("route", BODIES)
def test_every_api_has_the_headers(fresh: ServerProcess, route: str) -> None:
    body = {"model": fresh.model, "options": {"num_predict": 2}, **BODIES[route]}
    body = body if route.startswith("/api") else {**BODIES[route], "model": fresh.model}
    first, again = (fresh.http.post(fresh.url + route, json=body) for _ in range(2))
    assert first.status_code == again.status_code == 200
    assert "x-omlx-cache-miss" in first.headers and "x-omlx-cache-miss" not in again.headers
    assert int(again.headers["x-omlx-cached-tokens"]) > 100


def test_a_stream_has_the_headers_and_the_usage_too(fresh: ServerProcess) -> None:
    fresh.chat(STORY, max_tokens=2)
    body = fresh.body(STORY, max_tokens=2, stream=True, stream_options={"include_usage": True})
    response = fresh.post(body)
    usage = stream_events(response.text)[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert response.headers["x-omlx-cached-tokens"] == str(usage["prompt_tokens"] - 1)


def test_the_longest_wait_is_told_once_the_pace_is_known(fresh: ServerProcess) -> None:
    fresh.chat("Read on and on. " * 140, max_tokens=1)  # 2,240 tokens
    told = fresh.post(fresh.body(STORY, max_tokens=2)).headers["x-omlx-longest-wait"]
    assert int(told) > 0


def test_probe_tells_what_is_there_and_changes_nothing(fresh: ServerProcess) -> None:
    nothing = probe(fresh, STORY)
    assert nothing["cached_tokens"] == 0 and nothing["blocks"] == []
    fresh.chat(STORY, max_tokens=2)
    for _ in range(2):
        found = probe(fresh, STORY)
        assert found["cached_tokens"] == found["prompt_tokens"] - 1
        stops = [block["stop"] for block in found["blocks"]]
        starts = [block["start"] for block in found["blocks"]]
        assert starts == [0, *stops[:-1]] and stops[-1] >= found["cached_tokens"]
    assert_envelope(fresh.http.post(f"{fresh.url}/v1/cache/probe", json={"model": "no"}), 400)


def test_reset_forgets_everything(fresh: ServerProcess) -> None:
    fresh.chat(STORY, max_tokens=2)
    assert metric(fresh, 'omlx_cache_blocks{kind="blocks",tier="hot"}') > 0
    response = fresh.http.post(f"{fresh.url}/v1/cache/reset", json={})
    assert response.json()["dropped"][0]["blocks"] > 0
    wait_for(lambda: metric(fresh, 'omlx_cache_bytes{kind="blocks",tier="hot"}') == 0 or None)
    assert cached(fresh.chat(STORY, max_tokens=2)) == 0


def test_salts_do_not_share(fresh: ServerProcess) -> None:
    fresh.chat(STORY, max_tokens=2, cache_salt="mine")
    other = fresh.post(fresh.body(STORY, max_tokens=2, cache_salt="yours"))
    assert cached(other.json()) == 0
    assert other.headers["x-omlx-cache-miss"].startswith("namespace")
    assert cached(fresh.chat(STORY, max_tokens=2)) == 0
    assert cached(fresh.chat(STORY, max_tokens=2, cache_salt="mine")) > 0
    assert probe(fresh, STORY, cache_salt="theirs")["cached_tokens"] == 0


def test_choices_and_aborted_requests_leave_their_blocks(fresh: ServerProcess) -> None:
    body = fresh.body(STORY, max_tokens=4000, n=2, temperature=1, stream=True, ignore_eos=True)
    with httpx.stream("POST", f"{fresh.url}{CHAT}", json=body, timeout=60) as response:
        next(response.iter_lines())
    wait_for(lambda: busy(fresh.load()) == 0)
    again = fresh.chat(STORY, max_tokens=2)
    assert cached(again) == prompt_tokens(again) - 1


def test_requests_that_come_together_compute_their_prefix_once(fresh: ServerProcess) -> None:
    async def together() -> list[Json]:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            bodies = [fresh.body(STORY * 4 + f"{i}.", max_tokens=4) for i in range(8)]
            posts = [http.post(f"{fresh.url}{CHAT}", json=body) for body in bodies]
            return [response.json() for response in await asyncio.gather(*posts)]

    answers = asyncio.run(together())
    computed = sum(prompt_tokens(answer) - cached(answer) for answer in answers)
    longest = max(prompt_tokens(answer) for answer in answers)
    # One prefix, and of each of the others at most the block in which they part, and its tail.
    assert computed <= longest + 7 * (64 + 8)
    for number, answer in enumerate(answers):
        alone = fresh.chat(STORY * 4 + f"{number}.", max_tokens=4)
        assert text_of(answer) == text_of(alone)


def test_a_billing_block_does_not_cost_the_prefix(fresh: ServerProcess) -> None:
    def ask(number: int, as_part: bool) -> Json:
        volatile = f"x-anthropic-billing-header: cch={number}"
        parts = [{"type": "text", "text": volatile}, {"type": "text", "text": STORY}]
        system = (
            [{"role": "system", "content": parts}]
            if as_part
            else [
                {"role": "system", "content": volatile},
                {"role": "system", "content": STORY},
            ]
        )
        messages = [*system, {"role": "user", "content": "Hi"}]
        answer: Json = fresh.post(
            {"model": fresh.model, "messages": messages, "max_tokens": 2}
        ).json()
        return answer

    first = ask(1, as_part=True)
    for number, as_part in ((2, True), (3, False)):
        again = ask(number, as_part)
        assert prompt_tokens(again) == prompt_tokens(first)
        assert cached(again) == prompt_tokens(again) - 1


def test_metrics_count_hits_misses_and_requests(fresh: ServerProcess) -> None:
    names = (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:generation_tokens_total",
        'vllm:request_success_total{finished_reason="length"}',
        "vllm:time_to_first_token_seconds_count",
        'omlx_cache_hit_tokens_total{tier="hot"}',
        'omlx_cache_misses_total{reason="new_prefix"}',
    )
    fresh.chat(STORY, max_tokens=3, ignore_eos=True)
    before = [metric(fresh, name) for name in names]
    answer = fresh.chat(STORY, max_tokens=3, ignore_eos=True)
    hit = cached(answer)
    wait_for(lambda: metric(fresh, names[1]) == before[1] + hit or None)
    after = [metric(fresh, name) for name in names]
    gained = [b - a for a, b in zip(before, after, strict=True)]
    assert gained == [hit, hit, 3, 1, 1, hit, 0]


@pytest.fixture(scope="module")
def keyed(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = [
        f"models.dirs={tiny_models}",
        UNPROBED,
        "auth.api_keys=one,two",
        "cache.hot_cache_only=true",
    ]
    with serving("org/tiny", tmp_path_factory.mktemp("keyed"), *sets) as server:
        yield server


def test_clients_with_different_keys_do_not_share(keyed: ServerProcess) -> None:
    body = keyed.body(STORY, max_tokens=2)

    def ask(key: str) -> Json:
        answer: Json = keyed.post(body, authorization=f"Bearer {key}").json()
        return answer

    assert cached(ask("one")) == 0
    assert cached(ask("two")) == 0
    assert cached(ask("one")) > 0


def test_without_a_cache_all_works_and_nothing_is_kept(
    tiny_models: Path, tmp_path: Path, tiny: ServerProcess
) -> None:
    sets = [f"models.dirs={tiny_models}", UNPROBED, "cache.enabled=false"]
    with serving("org/tiny", tmp_path, *sets) as server:
        first, again = (server.chat(STORY, max_tokens=8) for _ in range(2))
        assert cached(first) == cached(again) == 0
        assert text_of(first) == text_of(again) == text_of(tiny.chat(STORY, max_tokens=8))


def test_a_small_budget_is_kept(tiny_models: Path, tmp_path: Path) -> None:
    sets = [f"models.dirs={tiny_models}", UNPROBED, "cache.hot_cache_max_bytes=200KiB"]
    with serving("org/tiny", tmp_path, *sets, "cache.hot_cache_only=true") as server:
        songs = [text_of(server.chat(f"{i} {STORY}", max_tokens=8)) for i in range(6)]
        kept = metric(server, 'omlx_cache_bytes{kind="blocks",tier="hot"}')
        assert 0 < kept <= 200 * 1024
        assert metric(server, 'omlx_cache_evictions_total{reason="block_budget",tier="hot"}') > 0
        again = server.post(server.body(f"0 {STORY}", max_tokens=8))
        assert text_of(again.json()) == songs[0]
        assert again.headers["x-omlx-cache-miss"].startswith("evicted")
