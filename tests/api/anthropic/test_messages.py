"""The official anthropic package, with strict response validation, against the real server."""

import asyncio
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from anthropic import Anthropic
from anthropic.types import Message, TextBlock, ToolUseBlock

from tests.api.anthropic import strict
from tests.api.anthropic.asking import (
    COUNT,
    PATH,
    body,
    count,
    post,
    refused,
    streamed,
    text_of,
    whole,
)
from tests.api.harness import MARKER, ServerProcess, wait_idle_soon

Json = dict[str, Any]

MODEL = "org/tiny"
JSON = {"content-type": "application/json"}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


# -- whole and streamed ----------------------------------------------------------------------


def test_an_answer_has_the_shape_that_clients_expect(claude: Anthropic) -> None:
    answer = claude.messages.create(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
    )
    assert isinstance(answer, Message)
    assert answer.id.startswith("msg_")
    assert (answer.role, answer.model) == ("assistant", MODEL)


def test_the_packages_stream_helper(claude: Anthropic) -> None:
    extra = {"temperature": 0, "ignore_eos": True}
    with claude.messages.stream(
        model=MODEL,
        max_tokens=9,
        messages=[{"role": "user", "content": "Hi"}],
        extra_body=extra,
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = final.content
    assert isinstance(block, TextBlock) and block.text == text
    assert final.usage.output_tokens == 9
    assert final.stop_reason == "max_tokens"


def test_the_beta_api_of_the_package(claude: Anthropic) -> None:
    """It asks with ?beta=true."""
    answer = claude.beta.messages.create(
        model=MODEL,
        max_tokens=3,
        messages=[{"role": "user", "content": "Hi"}],
        betas=["interleaved-thinking-2025-05-14", "no-such-beta"],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
    )
    assert answer.usage.output_tokens <= 3


@pytest.mark.parametrize("fields", [{}, {"stop_sequences": ["e"]}, {"max_tokens": 1}])
def test_a_stream_is_the_whole_message_in_pieces(tiny: ServerProcess, fields: Json) -> None:
    asked = body(**fields)
    message = whole(tiny, asked)
    first, *_, last, end = streamed(tiny, asked)
    told = streamed(tiny, asked)
    deltas = [e["delta"]["text"] for e in told if e["type"] == "content_block_delta"]
    assert "".join(deltas) == text_of(message)
    assert first["message"]["content"] == [] and end == {"type": "message_stop"}
    ending = ("container", "stop_details", "stop_reason", "stop_sequence")
    assert last["delta"] == {name: message[name] for name in ending}
    assert last["usage"]["output_tokens"] == message["usage"]["output_tokens"]


# -- why it ended ----------------------------------------------------------------------------


def test_the_length_is_exact(tiny: ServerProcess) -> None:
    for size in (1, 2, 33):
        message = whole(tiny, body(max_tokens=size))
        assert message["usage"]["output_tokens"] == size
        assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)


def test_a_stop_sequence_is_named_and_not_shown(tiny: ServerProcess) -> None:
    free = text_of(whole(tiny, body()))
    stop = next(c for c in free if free.count(c) == 1 and c.isascii() and c.isalnum())
    message = whole(tiny, body(stop_sequences=["\x00never", stop]))
    assert text_of(message) == free[: free.index(stop)]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)


def test_the_end_of_the_context_is_another_reason_than_max_tokens(tiny: ServerProcess) -> None:
    message = whole(tiny, body("7" * 4000, max_tokens=4000))
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == 4096
    assert message["stop_reason"] == "model_context_window_exceeded"


def test_an_answer_that_ends_by_itself(server: ServerProcess) -> None:
    asked = body("What is the capital of France?", model="starter", ignore_eos=False, max_tokens=60)
    assert whole(server, asked)["stop_reason"] == "end_turn"


# -- tokens ----------------------------------------------------------------------------------


def test_what_is_cached_is_not_counted_twice(tiny: ServerProcess) -> None:
    """Cold and warm, whole and streamed, it is what count_tokens says."""
    asked = body("count " + "me " * 300, system="Be exact.", max_tokens=2)
    counted = count(tiny, asked)
    cold, warm = (whole(tiny, asked)["usage"] for _ in range(2))
    told = streamed(tiny, asked)
    for usage in (cold, warm, told[0]["message"]["usage"], told[-2]["usage"]):
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted
        assert usage["cache_creation_input_tokens"] == 0
    assert cold["cache_read_input_tokens"] < 10
    assert warm["cache_read_input_tokens"] > counted / 2


def test_who_has_another_salt_shares_no_cache(tiny: ServerProcess) -> None:
    asked = body("salt " * 60, max_tokens=1)
    found = [
        whole(tiny, {**asked, "cache_salt": salt})["usage"]["cache_read_input_tokens"]
        for salt in ("one", "two", "one")
    ]
    assert found[1] < 10 < found[2]


def test_the_package_counts(claude: Anthropic, tiny: ServerProcess) -> None:
    one, two = (
        claude.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "7" * size}]
        ).input_tokens
        for size in (1, 101)
    )
    assert two - one == 100
    assert tiny.load()["running"] == 0


def test_a_billing_block_does_not_cost_the_cache(tiny: ServerProcess) -> None:
    usages = []
    for value in ("aaaa", "bbbb"):
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={value};"}
        rules = {"type": "text", "text": "Obey these rules. " * 40}
        asked = body("Hi", system=[billing, rules], max_tokens=1)
        usages.append(whole(tiny, asked)["usage"])
    assert usages[0]["input_tokens"] > 100
    assert usages[1]["cache_read_input_tokens"] > 100


# -- turns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["", "Once upon"])
def test_a_final_assistant_turn_is_continued(tiny: ServerProcess, start: str) -> None:
    """As a text completion goes on after the same words."""
    turns = [*body("Hi")["messages"], {"role": "assistant", "content": start}]
    prompt = f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{start}"
    plain = {**body(), "prompt": prompt}
    completed = tiny.http.post(f"{tiny.url}/v1/completions", json=plain).json()
    message = whole(tiny, body(messages=turns))
    assert text_of(message) == completed["choices"][0]["text"]


def test_system_turns_reach_the_prompt_in_place(tiny: ServerProcess) -> None:
    late = {"role": "system", "content": "It is noon."}
    answer = {"role": "assistant", "content": "Hello"}
    user = body()["messages"]
    prompt = "".join(
        f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n"
        for turn in (user[0], late, answer, user[0])
    )
    text = {"prompt": f"{prompt}<|im_start|>assistant\n", "model": MODEL}
    plain = tiny.http.post(f"{tiny.url}/tokenize", json=text).json()["count"]
    asked = body(messages=[user[0], late, answer, user[0]])
    assert count(tiny, asked) == plain


# -- tools -----------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_called(starter: Anthropic, server: ServerProcess, choice: Json) -> None:
    asked = body(
        "What is the weather in Paris?",
        model="starter",
        tools=[TOOL],
        tool_choice={**choice, "disable_parallel_tool_use": True},
        max_tokens=100,
        ignore_eos=False,
    )
    message = strict.message(whole(server, asked))
    (call,) = message.content
    assert isinstance(call, ToolUseBlock)
    assert (call.name, message.stop_reason) == ("get_weather", "tool_use")
    assert call.input["city"] in ("Paris", "Rome")
    fields = {k: v for k, v in asked.items() if k not in ("temperature", "ignore_eos")}
    with starter.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
        final = stream.get_final_message()
    assert [(b.type, b.model_dump()["input"]) for b in final.content] == [("tool_use", call.input)]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    turns = [
        *asked["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    free = {"messages": turns, "tool_choice": {"type": "none"}, "max_tokens": 8}
    again = whole(server, {**asked, **free})
    assert "tool_use" not in [block["type"] for block in again["content"]]


def test_tools_reach_the_prompt(tiny: ServerProcess) -> None:
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    plain = count(tiny, body())
    assert count(tiny, body(tools=[TOOL])) > plain + 50
    assert count(tiny, body(tools=[server_tool])) == plain


def test_an_answer_of_a_schema(starter: Anthropic, server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    asked = body("Is it?", model="starter", output_config=config, ignore_eos=False, max_tokens=60)
    answer = orjson.loads(text_of(whole(server, asked)))
    assert isinstance(answer["ok"], bool)


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": None},
        {"max_tokens": "5"},
        {"messages": []},
        {"messages": [{"role": MARKER, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": MARKER}]}]},
        {"messages": [{"role": "user", "content": {"type": MARKER}}]},
        {"messages": [{"role": "user"}]},
        {"temperature": 3},
        {"top_p": True},
        {"stream": "yes"},
        {"stop_sequences": [""]},
        {"thinking": {"type": MARKER}},
        {"thinking": {"type": "enabled", "budget_tokens": 24}},
        {"thinking": {"type": "enabled", "budget_tokens": 0}},
        {"tool_choice": {"type": "any"}},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": MARKER}},
        {"tools": [{"name": "a b", "input_schema": {}}]},
        {"tools": [{"name": MARKER}]},
        {"output_config": {"effort": MARKER}},
        {"chat_template_kwargs": {MARKER: 1}},
    ],
    ids=str,
)
def test_what_is_wrong_is_refused(tiny: ServerProcess, fields: Json) -> None:
    for stream in (False, True):
        response = post(tiny, {**body(), "stream": stream, **fields})
        refused(response, 400, "invalid_request_error")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 20_000])
def test_what_is_no_object_is_refused(tiny: ServerProcess, content: bytes) -> None:
    for path in (PATH, COUNT):
        response = tiny.http.post(tiny.url + path, content=content, headers=JSON)
        refused(response, 400, "invalid_request_error")


def test_every_failure_on_these_paths_has_the_shape(tiny: ServerProcess) -> None:
    url = tiny.url + PATH
    refused(tiny.http.get(url), 405, "invalid_request_error")
    refused(tiny.http.get(tiny.url + COUNT), 405, "invalid_request_error")
    refused(tiny.http.get(f"{url}/batches"), 404, "not_found_error")
    refused(post(tiny, body(model="no/such")), 404, "not_found_error")
    plain = tiny.http.post(url, content=b"x", headers={"content-type": "text/plain"})
    refused(plain, 415, "invalid_request_error")
    origin = post(tiny, body(), origin="https://evil.example")
    refused(origin, 403, "permission_error")
    refused(
        tiny.http.post(url, headers=JSON, content=[b" " * 2**20] * 80), 413, "request_too_large"
    )
    other = tiny.http.get(f"{tiny.url}/v1/messagesx").json()
    assert set(other) == {"error"}


def test_the_packages_errors(claude: Anthropic) -> None:
    def ask(**fields: Any) -> None:
        messages = [{"role": "user", "content": fields.pop("content", "Hi")}]
        asked = {"model": MODEL, "max_tokens": 5, "messages": messages, **fields}
        claude.messages.create(**asked)

    with pytest.raises(anthropic.NotFoundError):
        ask(model="no/such")
    with pytest.raises(anthropic.BadRequestError):
        ask(extra_body={"top_p": 5})
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(content="7" * 60_000)
    assert "prompt is too long" in str(caught.value)
    assert "This model's maximum context length is 4096 tokens" in str(caught.value)


# -- around it -------------------------------------------------------------------------------


def test_head_is_answered(tiny: ServerProcess) -> None:
    assert tiny.http.head(f"{tiny.url}/").status_code == 200


def test_headers_and_parameters_that_say_nothing_here(tiny: ServerProcess) -> None:
    headers = {"anthropic-beta": "a,b", "anthropic-version": "2023-06-01", "x-api-key": "k"}
    response = tiny.http.post(f"{tiny.url}{PATH}?beta=true&x=1", json=body(), headers=headers)
    assert response.status_code == 200
    assert response.headers["x-omlx-cached-tokens"].isdigit()


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_its_row(tiny: ServerProcess, stream: bool) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            asked = body(max_tokens=4000, stream=stream)
            asking = asyncio.create_task(http.post(tiny.url + PATH, json=asked))
            while not tiny.load()["running"]:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait({asking})

    asyncio.run(leave())
    wait_idle_soon(tiny)
