"""/v1/messages of a server with keys, one row, one place to wait, and a model that thinks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from anthropic.types import TextBlock, ThinkingBlock

from tests.api.anthropic.asking import (
    PATH,
    PING,
    body,
    events,
    post,
    refused,
    streamed,
    text_of,
    whole,
)
from tests.api.anthropic.conftest import KEY, package
from tests.api.harness import UNPROBED, ServerProcess, serving, wait_for, wait_idle_soon

Json = dict[str, Any]

MODEL = "org/thinker"


def thinking(budget: int | None, **fields: Any) -> Json:
    """Of a model that would think for ever."""
    mode = {"type": "disabled"} if budget is None else {"type": "enabled", "budget_tokens": budget}
    return body(model=MODEL, thinking=mode, max_tokens=60, **fields)


# -- thinking --------------------------------------------------------------------------------


def test_it_thinks_within_its_budget_and_then_answers(thinker: ServerProcess) -> None:
    message = whole(thinker, thinking(9))
    assert [block["type"] for block in message["content"]][:2] == ["thinking", "text"]
    usage = message["usage"]
    assert usage["output_tokens"] == 60
    assert 9 <= usage["output_tokens_details"]["thinking_tokens"] < 20
    assert message["content"][0]["signature"]


def test_it_does_not_think_when_told_not_to(thinker: ServerProcess) -> None:
    message = whole(thinker, thinking(None))
    assert message["content"][0]["type"] == "text"
    assert whole(thinker, thinking(9))["content"][0]["type"] == "thinking"


def test_thoughts_are_streamed_as_they_are_told_whole(thinker: ServerProcess) -> None:
    message = whole(thinker, thinking(9))
    told = streamed(thinker, thinking(9))
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    for kind in ("thinking", "text"):
        found = "".join(delta[kind] for delta in deltas if delta["type"] == f"{kind}_delta")
        assert found == text_of(message, kind)
    assert [d for d in deltas if d["type"] == "signature_delta"]


def test_the_package_gets_thoughts_and_gives_them_back(thinker: ServerProcess) -> None:
    fields = thinking(9)
    extra = {name: fields.pop(name) for name in ("temperature", "ignore_eos")}
    with package(thinker, KEY) as client:
        with client.messages.stream(**fields, extra_body=extra) as stream:
            message = stream.get_final_message()
        thought, said = message.content[:2]
        assert isinstance(thought, ThinkingBlock) and isinstance(said, TextBlock)
        turns = [
            *fields["messages"],
            message.to_param(),
            {"role": "user", "content": "Go on."},
        ]
        counts = [
            client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
            for messages in (turns, [turns[0], {**turns[1], "content": [said]}, turns[2]])
        ]
    assert counts[0] > counts[1] + 5, "the thought is not in the prompt"


# -- keys ------------------------------------------------------------------------------------


def test_both_forms_of_the_key_are_taken(thinker: ServerProcess) -> None:
    url = thinker.url + PATH
    asked = thinking(None)
    for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
        assert httpx.post(url, json=asked, headers=headers).status_code == 200


def test_a_wrong_key(thinker: ServerProcess) -> None:
    for path in (PATH, f"{PATH}/count_tokens", f"{PATH}/nowhere"):
        response = post(thinker, thinking(None), path, **{"x-api-key": "wrong"})
        refused(response, 401, "authentication_error")
    with package(thinker, "wrong") as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "Hi"}])


# -- waiting ---------------------------------------------------------------------------------


@contextmanager
def asking(server: ServerProcess, tokens: int) -> Iterator[httpx.Response]:
    """A stream under way."""
    asked = {**thinking(None), "max_tokens": tokens, "stream": True}
    headers = {"x-api-key": KEY}
    with (
        httpx.Client(timeout=60, trust_env=False) as http,
        http.stream("POST", server.url + PATH, json=asked, headers=headers) as response,
    ):
        yield response


def test_who_waits_gets_pings_and_who_finds_no_place_429(thinker: ServerProcess) -> None:
    with asking(thinker, 20_000):
        wait_for(lambda: thinker.load()["running"] == 1)
        with asking(thinker, 5) as waiting:
            assert waiting.status_code == 200
            response = post(thinker, thinking(None))
            refused(response, 429, "rate_limit_error")
            assert int(response.headers["retry-after"]) > 0
            with package(thinker, KEY) as client, pytest.raises(anthropic.RateLimitError):
                client.messages.create(
                    model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
                )
    wait_idle_soon(thinker)


def test_pings_come_before_the_message(thinker: ServerProcess) -> None:
    with asking(thinker, 20_000) as first:
        wait_for(lambda: thinker.load()["running"] == 1)
        with asking(thinker, 5) as second:
            pieces = second.iter_text()
            text = next(pieces)
            first.close()
            told = events(text + "".join(pieces))
    kinds = [event["type"] for event in told]
    assert PING in told
    assert next(kind for kind in kinds if kind != "ping") == "message_start"
    assert kinds.index("ping") < kinds.index("message_start")


def test_an_error_within_a_stream_is_an_event(tiny_models: Path, tmp_path: Path) -> None:
    """The server ends before the answer does."""
    sets = (f"models.dirs={tiny_models}", UNPROBED, "server.shutdown_grace_seconds=0.1")
    with serving("org/tiny", tmp_path, *sets) as server:
        asked = body(max_tokens=4000, stream=True)
        with server.http.stream("POST", server.url + PATH, json=asked) as response:
            pieces = response.iter_text()
            text = next(pieces)
            server.terminate()
            text += "".join(pieces)
    *told, last = text.removesuffix("\n\n").split("\n\n")
    assert events("\n\n".join(told) + "\n\n")
    name, data = last.split("\n")
    assert name == "event: error"
    error = orjson.loads(data.removeprefix("data: "))
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
