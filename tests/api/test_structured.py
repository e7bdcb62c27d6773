"""Structured output over HTTP: whatever the model, the temperature and the company."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI

from tests.api.harness import ServerProcess, text_of

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["glad", "señor", "日本", None]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "pattern": "^[a-z]{1,3}$"}},
}
SHORT: dict[str, Any] = {"max_tokens": 300, "temperature": 2.0}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


FORMS: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": schema_format(PERSON)},
    "llama.cpp": {"response_format": {"type": "json_object", "schema": PERSON}},
    "llama.cpp, bare": {"json_schema": PERSON},
    "structured_outputs": {"structured_outputs": {"json": PERSON}},
    "as text": {"structured_outputs": {"json": json.dumps(PERSON)}},
    "guided_json": {"guided_json": PERSON},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_every_form_of_a_schema(tiny: ServerProcess, name: str, seed: int) -> None:
    answer = tiny.chat("Who?", **SHORT, seed=seed, **FORMS[name])
    assert answer["choices"][0]["finish_reason"] == "stop"
    Draft202012Validator(PERSON).validate(json.loads(text_of(answer)))


@pytest.mark.parametrize("seed", range(4))
def test_any_json_object(tiny: ServerProcess, seed: int) -> None:
    answer = tiny.chat("Who?", response_format={"type": "json_object"}, seed=seed, **SHORT)
    if answer["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text_of(answer)), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}-[a-z]{2}"}}, "[0-9]{3}-[a-z]{2}"),
        ({"guided_regex": "(ab){2,4}"}, "(ab){2,4}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_choice": ["ä", "ö"]}, "ä|ö"),
        ({"grammar": 'root ::= "a" [bc]'}, "a[bc]"),
        ({"guided_grammar": 'start: "a" ("b" | "c")'}, "a[bc]"),
        ({"structured_outputs": {"grammar": 'root ::= "x" "y"?'}}, "xy?"),
    ],
)
def test_other_grammars(tiny: ServerProcess, fields: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        answer = tiny.chat("Go", **SHORT, seed=seed, **fields)
        assert re.fullmatch(pattern, text_of(answer)), text_of(answer)
        assert answer["choices"][0]["finish_reason"] == "stop"


def test_completions_obey_as_well(client: OpenAI) -> None:
    for form in FORMS.values():
        answer = client.completions.create(
            model="tiny", prompt=["Who?", "What?"], n=2, **SHORT, seed=1, extra_body=form
        )
        assert len(answer.choices) == 4
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            Draft202012Validator(PERSON).validate(json.loads(choice.text))


def test_logprobs_and_streams_of_a_constrained_answer(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Who?"}],
        "response_format": schema_format(PERSON),
        "seed": 5,
        "logprobs": True,
        **SHORT,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    raw = b"".join(bytes(entry.bytes or []) for entry in whole.logprobs.content)
    assert raw.decode() == whole.message.content
    chunks = list(client.chat.completions.create(stream=True, **asked))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.message.content


def test_a_cut_answer_says_so(tiny: ServerProcess) -> None:
    answer = tiny.chat("Who?", response_format=schema_format(PERSON), max_tokens=3)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_free_neighbours_are_as_alone(tiny: ServerProcess) -> None:
    """Free and constrained requests in one batch."""
    alone = text_of(tiny.chat("Tell me", max_tokens=60, ignore_eos=True))

    def free(_: int) -> str:
        return text_of(tiny.chat("Tell me", max_tokens=60, ignore_eos=True))

    def bound(seed: int) -> str:
        form = {"response_format": schema_format(PERSON)}
        return text_of(tiny.chat("Who?", **SHORT, seed=seed, **form))

    with ThreadPoolExecutor(8) as pool:
        frees, bounds = (
            [pool.submit(free, i) for i in range(4)],
            [pool.submit(bound, i) for i in range(12)],
        )
        assert {future.result() for future in frees} == {alone}
        for future in bounds:
            Draft202012Validator(PERSON).validate(json.loads(future.result()))


def test_an_empty_grammar_and_nulls_are_no_grammar(tiny: ServerProcess) -> None:
    plain = text_of(tiny.chat("Hi", max_tokens=8))
    nothing: dict[str, Any] = {
        "grammar": "",
        "response_format": {"type": "text"},
        "structured_outputs": None,
        "guided_json": None,
        "bad_words": [],
        "tools": [],
    }
    assert text_of(tiny.chat("Hi", max_tokens=8, **nothing)) == plain


def test_bad_words_never_come(tiny: ServerProcess) -> None:
    asked: dict[str, Any] = {"max_tokens": 120, "temperature": 1.5, "seed": 1, "ignore_eos": True}
    words = ["a", "e", "t"]
    assert any(word in text_of(tiny.chat("Hi", **asked)) for word in words)
    text = text_of(tiny.chat("Hi", bad_words=words, **asked))
    assert not re.search(r"(^|\s)[aet](\s|$)", text)


EMPTY: dict[str, dict[str, Any]] = {
    "regex": {"structured_outputs": {"regex": "()"}},
    "choice": {"structured_outputs": {"choice": [""]}},
    "grammar": {"grammar": 'root ::= ""'},
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_answer_that_must_be_empty_has_no_tokens(tiny: ServerProcess, name: str) -> None:
    fields = {"model": "tiny", "n": 2, "max_tokens": 5, **EMPTY[name]}
    chat = tiny.chat("Go", logprobs=True, **fields)
    prompts = {"prompt": ["a", "b"], "ignore_eos": True, **fields}
    text = tiny.http.post(f"{tiny.url}/v1/completions", json=prompts).json()
    assert [choice["message"]["content"] for choice in chat["choices"]] == ["", ""]
    assert [choice["text"] for choice in text["choices"]] == [""] * 4
    for answer in (chat, text):
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
        assert answer["usage"]["completion_tokens"] == 0


def test_an_empty_answer_ends_its_stream(client: OpenAI, tiny: ServerProcess) -> None:
    extra = {**EMPTY["regex"], "ignore_eos": True, "speculation": "ngram"}
    chunks = client.completions.create(
        model="tiny", prompt="Go", stream=True, n=2, max_tokens=5, extra_body=extra
    )
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == ""
    ends = sorted((c.index, c.finish_reason) for c in choices if c.finish_reason)
    assert ends == [(0, "stop"), (1, "stop")]
    # The model is at work for others as before.
    assert tiny.chat("Go", max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2
