"""/v1/responses on a real server with a tiny model: shapes, streams, chains, what is stored."""

import time
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai import OpenAI

from omlx_server.api.responses.schema import ResponsesRequest
from tests.api.harness import ServerProcess, assert_envelope, wait_idle_soon
from tests.api.responses import judge
from tests.api.responses.asking import (
    RESPONSES,
    ask,
    ask_streaming,
    body,
    get,
    post,
    text_of,
    without_names,
)

MODEL = "org/tiny"
COUNT = f"{RESPONSES}/input_tokens"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def count(server: ServerProcess, **fields: Any) -> int:
    answer = post(server, {"model": MODEL, **fields}, COUNT).json()
    assert answer["object"] == "response.input_tokens"
    return int(answer["input_tokens"])


# -- answers ---------------------------------------------------------------------------------


def test_an_answer_that_is_cut_is_incomplete(tiny: ServerProcess) -> None:
    found = ask(tiny, metadata={"a": "b"}, instructions="Be short.")
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found["output"][0]["status"] == "incomplete"
    assert (found["metadata"], found["instructions"]) == ({"a": "b"}, "Be short.")
    tokens = count(tiny, input="Tell me a story.", instructions="Be short.")
    usage = found["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (tokens, 16)
    assert usage["total_tokens"] == tokens + 16


def test_an_answer_is_that_of_a_chat(tiny: ServerProcess) -> None:
    chat = tiny.chat("Tell me a story.", max_tokens=16, ignore_eos=True)
    assert text_of(ask(tiny)) == chat["choices"][0]["message"]["content"]


def test_a_stop_string_completes_an_answer(tiny: ServerProcess) -> None:
    whole = text_of(ask(tiny))
    middle = whole[len(whole) // 2]
    found = ask(tiny, stop=middle)
    assert found["status"] == "completed" and found["incomplete_details"] is None
    assert text_of(found) == whole[: whole.index(middle)]
    assert found["completed_at"] >= found["created_at"]


def test_a_stream_ends_with_the_whole_response(tiny: ServerProcess) -> None:
    for fields in ({}, {"stop": "e"}, {"top_logprobs": 2}):
        events = ask_streaming(tiny, **fields)
        whole = ask(tiny, **fields)
        assert events[-1]["type"] == f"response.{whole['status']}"
        last = events[-1]["response"]
        assert without_names(last)["output"] == without_names(whole)["output"]
        assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        assert set(last) == set(whole)
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        assert len(deltas) > 3 and "".join(deltas) == text_of(whole)
        assert get(tiny, last["id"]).json() == last


def test_logprobs_belong_to_the_text(tiny: ServerProcess) -> None:
    found = ask(tiny, include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = found["output"][0]["content"]
    pieces = [bytes(entry["bytes"]) for entry in part["logprobs"]]
    assert len(pieces) == 16 and b"".join(pieces).decode(errors="replace") == part["text"]
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
    assert ask(tiny)["output"][0]["content"][0]["logprobs"] == []


def test_an_answer_in_a_format(tiny: ServerProcess) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "s", "schema": schema, "strict": True}
    found = ask(tiny, text={"format": form}, max_output_tokens=200, ignore_eos=False)
    assert orjson.loads(text_of(found))["a"] in ("x", "y")
    assert found["text"]["format"] == {**form, "description": None}


def test_the_package_itself(client: OpenAI) -> None:
    found = client.responses.create(model=MODEL, input="Hi", max_output_tokens=8, top_p=0)
    assert found.output_text
    assert client.responses.retrieve(found.id) == found
    with client.responses.stream(model=MODEL, input="Hi", max_output_tokens=300, top_p=0) as stream:
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    counted = client.responses.input_tokens.count(model=MODEL, input="Hi")
    assert found.usage and counted.input_tokens == found.usage.input_tokens
    items = list(client.responses.input_items.list(found.id))
    assert [item.type for item in items] == ["message"]
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(found.id)
    client.responses.delete(found.id)
    for method in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            method(found.id)
        assert caught.value.code == "response_not_found"


# -- chains ----------------------------------------------------------------------------------


def test_a_chain_is_one_conversation(tiny: ServerProcess) -> None:
    first = ask(tiny, input="One?", instructions="Old.")
    second = ask(tiny, input=[user("Two?")], previous_response_id=first["id"])
    third = ask(
        tiny, input="Three?", instructions="New.", previous_response_id=second["id"], stream=False
    )
    spelled = [user("One?"), said(text_of(first)), user("Two?")]
    by_hand = ask(tiny, input=spelled)
    assert text_of(second) == text_of(by_hand)
    assert second["usage"]["input_tokens"] == by_hand["usage"]["input_tokens"]
    whole = [*spelled, said(text_of(second)), user("Three?")]
    expected = count(tiny, input=whole, instructions="New.")
    assert third["usage"]["input_tokens"] == expected
    assert third["previous_response_id"] == second["id"]
    assert count(tiny, input="Three?", instructions="New.", previous_response_id=second["id"]) == (
        expected
    )


def test_a_chain_outlives_what_it_began_with(tiny: ServerProcess) -> None:
    first = ask(tiny, input="One?")
    second = ask(tiny, input="Two?", previous_response_id=first["id"])
    headers = {"authorization": "Bearer x"}
    gone = tiny.http.delete(f"{tiny.url}{RESPONSES}/{first['id']}", headers=headers)
    assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert ask(tiny, input="Three?", previous_response_id=second["id"])
    error = assert_envelope(post(tiny, body(tiny, previous_response_id=first["id"])), 400)
    assert error["code"] == "previous_response_not_found"
    assert error["param"] == "previous_response_id"


def test_the_second_turn_of_a_chain_is_read_from_the_cache(tiny: ServerProcess) -> None:
    first = ask(tiny, input="A long story, please. " * 10)
    second = ask(tiny, input="More.", previous_response_id=first["id"])
    usage = second["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert 64 <= cached < usage["input_tokens"]


def test_what_is_not_stored_is_not_there(tiny: ServerProcess) -> None:
    found = ask(tiny, store=False)
    assert found["store"] is False
    assert assert_envelope(get(tiny, found["id"]), 404)["code"] == "response_not_found"
    assert_envelope(post(tiny, body(tiny, previous_response_id=found["id"])), 400)
    reference = {"type": "item_reference", "id": found["output"][0]["id"]}
    error = assert_envelope(post(tiny, body(tiny, input=[reference])), 404)
    assert (error["code"], error["param"]) == ("item_not_found", "input")


def test_items_can_be_named_instead_of_sent(tiny: ServerProcess) -> None:
    first = ask(tiny, input="One?")
    (question,) = get(tiny, f"{first['id']}/input_items").json()["data"]
    named = [{"id": question["id"]}, {"type": "item_reference", "id": first["output"][0]["id"]}]
    sent = [user("One?"), *first["output"]]
    tail = [user("Two?")]
    assert text_of(ask(tiny, input=named + tail)) == text_of(ask(tiny, input=sent + tail))
    assert count(tiny, input=named + tail) == count(
        tiny, input=[user("One?"), said(text_of(first)), *tail]
    )


def test_input_items_come_in_pages(tiny: ServerProcess) -> None:
    first = ask(tiny, input=[user("One?"), said("Yes."), user("Two?")])
    second = ask(tiny, input="Three?", previous_response_id=first["id"])

    def items(query: str) -> Any:
        return judge.item_list(get(tiny, f"{second['id']}/input_items{query}").json())

    def texts(query: str) -> list[str]:
        return [item.content[0].text for item in items(query).data]

    whole = ["One?", "Yes.", "Two?", text_of(first), "Three?"]
    assert texts("?order=asc") == whole
    assert texts("") == whole[::-1]
    page = items("?order=asc&limit=2")
    assert (page.has_more, page.first_id, page.last_id) == (
        True,
        page.data[0].id,
        page.data[1].id,
    )
    assert texts(f"?order=asc&limit=3&after={page.last_id}") == whole[2:]
    for query in ("?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=no"):
        assert_envelope(get(tiny, f"{second['id']}/input_items{query}"), 400)


# -- what clients send -----------------------------------------------------------------------


def test_every_optional_field_may_be_null(tiny: ServerProcess) -> None:
    required = {"model": MODEL, "input": "Hi"}
    nulls = dict.fromkeys(set(ResponsesRequest.model_fields) - set(required))
    exact = {"seed": 3, "max_output_tokens": 8}
    with_nulls = post(tiny, {**required, **nulls, **exact})
    plain = post(tiny, {**required, **exact})
    assert with_nulls.status_code == plain.status_code == 200, with_nulls.text
    assert text_of(with_nulls.json()) == text_of(plain.json())


def test_errors_before_a_stream_are_plain_errors(tiny: ServerProcess) -> None:
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}
    schema = {"type": "json_schema", "name": "s", "schema": {"type": "nonsense"}}
    wrong: list[tuple[dict[str, Any], int, str | None]] = [
        ({"model": "no/such"}, 404, "model"),
        ({"temperature": 3}, 400, "temperature"),
        ({"background": True}, 400, "background"),
        ({"input": [image]}, 400, "input"),
        ({"input": "7" * 60_000}, 400, "input"),
        ({"input": "7" * 4096}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, 400, "tool_choice"),
        ({"tools": [{"type": "function", "name": ""}]}, 400, "tools.0.name"),
        ({"text": {"format": schema}}, 400, "text.format"),
    ]
    for fields, status, param in wrong:
        for stream in (False, True):
            answer = post(tiny, body(tiny, stream=stream, **fields))
            assert assert_envelope(answer, status)["param"] == param
            if fields.get("input", "").__class__ is str and status == 400 and param == "input":
                assert "This model's maximum context length is 4096 tokens" in answer.text
    assert_envelope(get(tiny, "resp_x?stream=true"), 400)
    assert_envelope(tiny.http.get(f"{tiny.url}{RESPONSES}"), 405)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_its_rows(tiny: ServerProcess, stream: bool) -> None:
    fields = body(tiny, max_output_tokens=3500, stream=stream)
    with (
        httpx.Client(timeout=httpx.Timeout(60, read=0.5), trust_env=False) as http,
        pytest.raises(httpx.ReadTimeout),
        http.stream("POST", f"{tiny.url}{RESPONSES}", json=fields) as answer,
    ):
        began = time.monotonic()
        for _ in answer.iter_bytes():
            if time.monotonic() - began > 0.5:
                raise httpx.ReadTimeout("long enough")
    wait_idle_soon(tiny)
