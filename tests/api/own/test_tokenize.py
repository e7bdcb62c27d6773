"""/tokenize and /detokenize, as clients of vLLM and of llama.cpp ask."""

from typing import Any

import httpx
import pytest

from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import Json, ServerProcess, assert_envelope

TEXT = "Grüße aus 日本 \U0001f600, <|im_start|>user"


def ask(server: ServerProcess, path: str, **fields: Any) -> Json:
    response = httpx.post(f"{server.url}{path}", json=fields, trust_env=False)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def test_a_prompt_as_vllm_does(tiny: ServerProcess, tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode(TEXT)
    got = ask(tiny, "/tokenize", model=tiny.model, prompt=TEXT)
    assert got == {
        "tokens": expected,
        "count": len(expected),
        "max_model_len": 4096,
        "token_strs": None,
    }
    strings = ask(tiny, "/tokenize", prompt="plain text", return_token_strs=True)["token_strs"]
    assert "".join(strings) == "plain text"


def test_a_conversation_has_as_many_tokens_as_its_completion_counts(tiny: ServerProcess) -> None:
    messages = [{"role": "user", "content": TEXT}]
    got = ask(tiny, "/tokenize", model=tiny.model, messages=messages)
    answer = tiny.chat(TEXT, max_tokens=1)
    assert got["count"] == len(got["tokens"]) == answer["usage"]["prompt_tokens"]
    bare = ask(tiny, "/tokenize", messages=messages, add_generation_prompt=False)
    assert bare["count"] < got["count"]
    function = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    got = ask(tiny, "/tokenize", messages=messages, tools=tools)
    answer = tiny.chat(TEXT, max_tokens=1, tools=tools)
    assert bare["count"] < got["count"] == answer["usage"]["prompt_tokens"]


def test_content_as_llama_cpp_does(tiny: ServerProcess, tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode(TEXT)
    assert ask(tiny, "/tokenize", content=TEXT) == {"tokens": expected}
    assert ask(tiny, "/tokenize", content="") == {"tokens": []}
    pieces = ask(tiny, "/tokenize", content=TEXT, with_pieces=True)["tokens"]
    assert [piece["id"] for piece in pieces] == expected
    raw = b"".join(
        p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces
    )
    assert raw.decode() == TEXT


def test_there_and_back_again(tiny: ServerProcess) -> None:
    tokens = ask(tiny, "/tokenize", prompt=TEXT)["tokens"]
    assert ask(tiny, "/detokenize", model=tiny.model, tokens=tokens) == {
        "prompt": TEXT,
        "content": TEXT,
    }
    assert ask(tiny, "/detokenize", tokens=[])["content"] == ""


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "content": "b"}, 400),
        ("/tokenize", {"prompt": 5}, 400),
        ("/tokenize", {"messages": []}, 400),
        ("/tokenize", {"prompt": "a", "model": "nobody"}, 404),
        ("/detokenize", {}, 400),
        ("/detokenize", {"tokens": [1 << 30]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": ["1"]}, 400),
    ],
)
def test_what_is_wrong_is_said(
    tiny: ServerProcess, path: str, fields: dict[str, Any], status: int
) -> None:
    response = httpx.post(f"{tiny.url}{path}", json=fields, trust_env=False)
    assert response.status_code == status
    assert_envelope(response, status)


@pytest.mark.parametrize("field", ["prompt", "content"])
def test_a_text_of_more_than_a_million_tokens_is_refused(tiny: ServerProcess, field: str) -> None:
    """What is longer than the context is fine."""
    response = httpx.post(f"{tiny.url}/tokenize", json={field: "7 " * 1_100_000}, trust_env=False)
    error = assert_envelope(response, 400)
    assert (error["param"], error["code"]) == (field, "context_length_exceeded")
    assert "1048576 are the most" in error["message"]
    assert len(ask(tiny, "/tokenize", **{field: "7" * 10_000})["tokens"]) > 4096
