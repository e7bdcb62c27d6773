"""Grammars that go off late, over HTTP: their own request ends with an error, and nothing else."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.api.harness import ServerProcess, assert_envelope, samples, text_of
from tests.text.grammar import bombs

CODE = "grammar_too_complex"
COUNTED = "omlx_grammars_too_complex_total"
SCHEMA = bombs.alternatives(1000)
FORMAT = {"type": "json_schema", "name": "x", "schema": SCHEMA}
# Each API with a bomb in the form that it has for one. No end of an answer comes before it: the
# fuse is one string of letters, and the model chooses at random behind it.
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "structured_outputs": {"grammar": bombs.intersected(24)},
        },
    ),
    "completions": (
        "/v1/completions",
        {"prompt": "Hi", "guided_grammar": bombs.ambiguous(1500)},
    ),
    "responses": ("/v1/responses", {"input": "Hi", "text": {"format": FORMAT}}),
    "messages": (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "max_tokens": 2000,
        },
    ),
}


def ask(server: ServerProcess, name: str, **fields: Any) -> httpx.Response:
    path, body = ASKED[name]
    most = "max_output_tokens" if name == "responses" else "max_tokens"
    whole = {"model": "tiny", most: 2000, "temperature": 1.0, **body, **fields}
    return server.http.post(server.url + path, json=whole, timeout=120)


def counted(server: ServerProcess) -> float:
    return samples(server.http.get(f"{server.url}/metrics").text).get(COUNTED, 0)


@pytest.mark.parametrize("name", ASKED)
def test_it_is_the_clients_fault_in_every_api(tiny: ServerProcess, name: str) -> None:
    before = counted(tiny)
    answer = ask(tiny, name)
    assert answer.status_code == 400, answer.text[:500]
    told = answer.json()["error"]
    assert "too expensive at token" in told["message"]
    if name != "messages":
        assert assert_envelope(answer, 400)["code"] == CODE
    assert counted(tiny) == before + 1


@pytest.mark.parametrize("name", ASKED)
def test_a_stream_says_it_in_an_event_and_ends(tiny: ServerProcess, name: str) -> None:
    text = ask(tiny, name, stream=True).text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    errors = [event for event in events if event.get("error") or event.get("type") == "error"]
    assert len(events) > 20 and len(errors) == 1
    assert "too expensive at token" in json.dumps(errors)
    assert CODE in json.dumps(errors) or name == "messages"
    assert "[DONE]" in text.splitlines()[-2] or name in ("responses", "messages")


def test_others_are_neither_changed_nor_kept_waiting(tiny: ServerProcess) -> None:
    """Two bombs beside a free answer and a constrained one. Each would take minutes."""
    free: dict[str, Any] = {"max_tokens": 500, "ignore_eos": True, "seed": 4, "temperature": 1.0}
    bound: dict[str, Any] = {**free, "max_tokens": 150, "guided_regex": "([a-z]{1,9} ){400}"}
    alone = text_of(tiny.chat("Tell me", **free)), text_of(tiny.chat("Tell me", **bound))
    soon = 'vllm:inter_token_latency_seconds_bucket{le="5.0"}'
    all_of_them = "vllm:inter_token_latency_seconds_count"
    before = samples(tiny.http.get(f"{tiny.url}/metrics").text)
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(tiny.chat, "Tell me", **asked) for asked in (free, bound)]
        ended = [pool.submit(ask, tiny, name, seed=7) for name in ("chat", "completions")]
        assert [future.result().status_code for future in ended] == [400, 400]
        assert tuple(text_of(future.result()) for future in streams) == alone
    after = samples(tiny.http.get(f"{tiny.url}/metrics").text)
    assert after[all_of_them] - before[all_of_them] == after[soon] - before[soon]
    tiny.wait_idle()
