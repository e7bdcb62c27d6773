"""Messages of Ollama as messages of a chat, durations of `keep_alive`, and what files say."""

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pytest
from safetensors.numpy import save_file

from omlx_server.api.chat.choices import ChoiceDelta, TokenCounts
from omlx_server.api.http.exchange import Exchange, Phases
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.ollama import models as files
from omlx_server.api.ollama.prompt import chat_messages, chat_request_of_prompt
from omlx_server.api.ollama.schema import GenerateRequest, GivenMessage, keep_alive_seconds
from omlx_server.api.ollama.shapes import AnswerLines, message_body
from omlx_server.errors import BadRequest
from omlx_server.text.parts import Arguments, CallStart, Text

Json = dict[str, Any]


def converted(*messages: Json) -> list[Json]:
    return chat_messages([GivenMessage.model_validate(message) for message in messages])


def calls(*names: str, **more: Any) -> Json:
    made = [{"function": {"name": name, "arguments": {"n": name}}} for name in names]
    return {"role": "assistant", "tool_calls": made, **more}


def result(content: str, **more: Any) -> Json:
    return {"role": "tool", "content": content, **more}


def test_calls_without_ids_get_the_same_ids_each_time() -> None:
    talk = [calls("a", "b"), result("1"), result("2"), calls("a"), result("3")]
    made = converted(*talk)
    ids = [call["id"] for message in made for call in message.get("tool_calls", ())]
    assert ids == ["call00000", "call00001", "call00002"]
    assert [m["tool_call_id"] for m in made if m["role"] == "tool"] == ids
    assert [m["name"] for m in made if m["role"] == "tool"] == ["a", "b", "a"]
    assert made == converted(*talk, {"role": "user", "content": "x"})[:5]
    assert json.loads(made[0]["tool_calls"][0]["function"]["arguments"]) == {"n": "a"}


def test_a_result_belongs_to_the_call_that_it_names() -> None:
    made = converted(calls("a", "b"), result("1", tool_name="b"), result("2"))
    assert [m["tool_call_id"] for m in made[1:]] == ["call00001", "call00000"]
    given = [{"id": "x1", "function": {"name": "a"}}, {"id": "x2", "function": {"name": "b"}}]
    made = converted({"role": "assistant", "tool_calls": given}, result("1", tool_call_id="x2"))
    assert made[1] == {"role": "tool", "content": "1", "tool_call_id": "x2", "name": "b"}
    [alone] = converted(result("1", tool_name="c"))
    assert (alone["tool_call_id"], alone["name"]) == ("call00000", "c")


def test_thoughts_and_images_keep_their_message() -> None:
    made = converted(
        {"role": "user", "content": "Look", "images": ["aGk="]},
        {"role": "assistant", "content": "Yes", "thinking": "Hm"},
    )
    image = {"type": "image_url", "image_url": "data:;base64,aGk="}
    assert made[0]["content"] == [image, {"type": "text", "text": "Look"}]
    assert made[1]["reasoning_content"] == "Hm"
    for wrong in ("data:image/png;base64,aGk=", "a%20"):
        with pytest.raises(BadRequest, match="base64"):
            converted({"role": "user", "images": [wrong]})


def test_a_wrong_image_is_named_by_its_field() -> None:
    with pytest.raises(BadRequest) as of_message:
        converted({"role": "user", "images": ["aGk=", "a%20"]})
    body = GenerateRequest(model="org/any", prompt="Look", images=["a%20"])
    with pytest.raises(BadRequest) as of_prompt:
        chat_request_of_prompt(body, cast(ServedModel, None))
    assert (of_message.value.param, of_prompt.value.param) == ("messages.0.images.1", "images.0")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *((None, None), (0, 0), (90, 90), (1.5, 1.5), (-1, math.inf), ("-1", math.inf)),
        *(("0", 0), ("300", 300), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("-1s", math.inf)),
    ],
)
def test_a_time_to_stay_is_read_as_ollama_reads_it(
    given: float | str | None, seconds: float | None
) -> None:
    assert keep_alive_seconds(given) == seconds


@pytest.mark.parametrize("wrong", ["", "soon", "5 m", "5x", "m", "5m3", "1e3"])
def test_what_is_no_time_is_refused(wrong: str) -> None:
    with pytest.raises(BadRequest, match="keep_alive"):
        keep_alive_seconds(wrong)


def shapes() -> AnswerLines:
    exchange = Exchange("x", phases=[Phases(1)])
    return AnswerLines("m", message_body, exchange, 0.0, with_logprobs=False)


def test_a_call_is_sent_once_it_is_whole_and_not_when_it_was_cut() -> None:
    made, usage = shapes(), TokenCounts(1)
    first = ChoiceDelta(0, (Text("Well. "), CallStart(0, "c1", "f"), Arguments(0, '{"x":')))
    assert [line["message"] for line in made.lines(first, usage)] == [
        {"role": "assistant", "content": "Well. "}
    ]
    more = ChoiceDelta(0, (Arguments(0, " 1e999}"), CallStart(1, "c2", "g"), Arguments(1, "{}")))
    [line] = made.lines(more, usage)
    assert orjson.dumps(line["message"]["tool_calls"]) == (
        b'[{"id":"c1","function":{"index":0,"name":"f","arguments":{"x": 1e999}}}]'
    )
    cut = ChoiceDelta(0, (CallStart(2, "c3", "h"), Arguments(2, '{"y')), finish="length")
    second, last = made.lines(cut, usage)
    [call] = second["message"]["tool_calls"]
    assert (call["id"], call["function"]["index"]) == ("c2", 1)
    assert (last["done_reason"], last["message"]["content"]) == ("length", "")


def test_parameters_are_counted_also_where_weights_are_packed(tmp_path: Path) -> None:
    """256 weights of 4 bits in 8 rows, each row with a scale and a bias; and three as they are."""
    config = {"model_type": "llama", "quantization": {"group_size": 32, "bits": 4}}
    (tmp_path / "config.json").write_bytes(orjson.dumps(config))
    scale = np.zeros((8, 1), np.float16)
    packed: dict[str, np.ndarray[Any, Any]] = {
        "a.weight": np.zeros((8, 4), np.uint32),
        "a.scales": scale,
        "a.biases": scale,
    }
    tensors = {**packed, "b.weight": np.zeros(3, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = files.read_card(tmp_path)
    assert (found.family, found.quantization, found.parameters) == ("llama", "4-bit", 259)
    (tmp_path / "chat_template.jinja").write_text("x")
    assert files.read_card(tmp_path).digest != found.digest
    assert files.read_card(tmp_path / "none") == files.read_card(None) == files.ModelCard()


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, ""), (999, "999"), (135_000_000, "135M"), (8_030_000_000, "8.0B"), (2 * 10**12, "2.0T")],
)
def test_numbers_of_parameters_are_short(count: int, words: str) -> None:
    assert files.in_words(count) == words
