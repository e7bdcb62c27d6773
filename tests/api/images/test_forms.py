"""Images in each form of the three APIs: answers, counts and what is kept of them."""

from typing import Any

import pytest

from tests.api.harness import CHAT, ServerProcess, cached, stream_events, text_of
from tests.api.images import forms
from tests.api.images.forms import (
    ASKED,
    ONE,
    OTHER,
    RESPONSES,
    SEVERAL,
    WITH_RESULT,
    Told,
    answered,
    post,
)
from tests.images.files import encoded, noise
from tests.sweeps import wide
from tests.vision_models import FAMILIES

PATH = {family: f"org/{family}" for family in FAMILIES}
QWEN = PATH["qwen3_vl"]
# Of an image of 64 x 48 pixels.
TOKENS = {"qwen3_vl": 48, "gemma3": 16, "smolvlm": 45}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("told", [ASKED, SEVERAL, WITH_RESULT])
def test_an_answer_is_the_same_in_each_api(seeing: ServerProcess, family: str, told: Told) -> None:
    found = {
        run(seeing, PATH[family], told)
        for run in (forms.by_chat, forms.by_messages, forms.by_responses)
    }
    assert len(found) == 1
    [(text, tokens)] = found
    assert text
    images = sum(isinstance(piece, bytes) for _, pieces in told for piece in pieces)
    assert tokens > images * TOKENS[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_depends_on_the_image_and_on_its_place(
    seeing: ServerProcess, family: str
) -> None:
    asked: list[Told] = [
        [("user", [ONE, "a"])],
        [("user", [OTHER, "a"])],
        [("user", ["a", ONE])],
        [("user", ["a"])],
    ]
    answers = (forms.with_logprobs(seeing, PATH[family], told) for told in asked)
    assert len({forms.first_logprobs(answer) for answer in answers}) == len(asked)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("told", [ASKED, SEVERAL, WITH_RESULT])
def test_counted_tokens_are_those_of_the_usage(
    seeing: ServerProcess, family: str, told: Told
) -> None:
    model = PATH[family]
    _, used = forms.by_chat(seeing, model, told)
    body = forms.messages(model, told)
    counted = answered(seeing, forms.COUNT_MESSAGES, body)["input_tokens"]
    asked = forms.responses(model, told)
    told_by_responses = answered(seeing, forms.COUNT_RESPONSES, asked)["input_tokens"]
    tokenized = answered(
        seeing, "/tokenize", {**forms.chat(model, told), "return_token_strs": True}
    )
    assert counted == told_by_responses == tokenized["count"] == len(tokenized["tokens"]) == used
    placeholder = FAMILIES[family].tokens[0]
    images = sum(isinstance(piece, bytes) for _, pieces in told for piece in pieces)
    assert tokenized["token_strs"].count(placeholder) == images * TOKENS[family]


def test_an_image_url_may_be_a_string(seeing: ServerProcess) -> None:
    body = forms.chat(QWEN, ASKED)
    expected = answered(seeing, CHAT, body)
    part = body["messages"][0]["content"][1]
    part["image_url"] = part["image_url"]["url"]
    assert text_of(answered(seeing, CHAT, body)) == text_of(expected)


def test_an_anthropic_source_may_be_a_data_url(seeing: ServerProcess) -> None:
    body = forms.messages(QWEN, ASKED)
    expected = answered(seeing, forms.MESSAGES, body)["content"]
    body["messages"][0]["content"][1]["source"] = {"type": "url", "url": forms.url(ONE)}
    assert answered(seeing, forms.MESSAGES, body)["content"] == expected


def test_what_a_file_is_its_pixels_say(seeing: ServerProcess) -> None:
    """In another format, with another media type, an image is the same one."""
    pixels = noise(40, 40, seed=7)
    png, webp = encoded(pixels, "PNG"), encoded(pixels, "WEBP", lossless=True)
    first = answered(seeing, CHAT, forms.chat(QWEN, [("user", [png, "Tell me. " * 30])]))
    again = answered(seeing, CHAT, forms.chat(QWEN, [("user", [webp, "Tell me. " * 30])]))
    assert text_of(first) == text_of(again)
    assert cached(again) > 25


def test_an_image_that_differs_in_one_pixel_is_another(seeing: ServerProcess) -> None:
    pixels = noise(40, 40, seed=8)
    changed = pixels.copy()
    changed[20, 20, 0] ^= 128
    files = [encoded(pixels, "PNG"), encoded(changed, "PNG")]
    talks: list[Told] = [[("user", [file, "Tell me. " * 30])] for file in files]
    first, other = (forms.with_logprobs(seeing, QWEN, talk) for talk in talks)
    assert cached(other) < 8
    assert forms.first_logprobs(first) != forms.first_logprobs(other)


def test_a_low_detail_takes_fewer_tokens(seeing: ServerProcess) -> None:
    large = encoded(noise(250, 250), "PNG")

    def tokens(model: str, detail: str | None) -> int:
        body = forms.chat(model, [])
        body["messages"] = [{"role": "user", "content": [forms.image_part(large, detail)]}]
        return int(answered(seeing, CHAT, body)["usage"]["prompt_tokens"])

    for detail in (None, "auto", "high", "original"):
        assert tokens(QWEN, detail) > 900
    assert 200 < tokens(QWEN, "low") < 300
    smol = PATH["smolvlm"]
    assert tokens(smol, "low") < tokens(smol, "high") / 3
    gemma = PATH["gemma3"]
    assert tokens(gemma, "low") == tokens(gemma, "high")


def test_a_stream_tells_the_same(seeing: ServerProcess) -> None:
    whole, _ = forms.by_chat(seeing, QWEN, ASKED)
    streamed = post(seeing, CHAT, forms.chat(QWEN, ASKED, stream=True))
    assert streamed.status_code == 200
    events = stream_events(streamed.text)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == whole


def test_a_stored_response_keeps_its_images(seeing: ServerProcess) -> None:
    first = answered(seeing, RESPONSES, forms.responses(QWEN, ASKED))
    said = forms.text_of(first)
    more = {"model": QWEN, "input": "And now?", "temperature": 0, "max_output_tokens": 8}
    after = answered(seeing, RESPONSES, {**more, "previous_response_id": first["id"]})
    whole: Told = [*ASKED, ("assistant", [said]), ("user", ["And now?"])]
    sent = answered(seeing, RESPONSES, {**forms.responses(QWEN, whole), "max_output_tokens": 8})
    assert after["usage"]["input_tokens"] == sent["usage"]["input_tokens"]
    assert after["usage"]["input_tokens_details"]["cached_tokens"] >= TOKENS["qwen3_vl"]
    listed = seeing.http.get(f"{seeing.url}{RESPONSES}/{after['id']}/input_items?order=asc").json()
    parts = listed["data"][0]["content"]
    assert [part["type"] for part in parts] == ["input_text", "input_image", "input_text"]
    assert parts[1] == forms.input_image(ONE)


def test_a_result_with_an_image_is_stored_as_it_came(seeing: ServerProcess) -> None:
    asked = forms.responses(QWEN, WITH_RESULT)
    made = answered(seeing, RESPONSES, asked)
    listed = seeing.http.get(f"{seeing.url}{RESPONSES}/{made['id']}/input_items?order=asc").json()
    assert listed["data"][-1]["output"] == asked["input"][-1]["output"]


def test_a_compacted_conversation_keeps_the_images_of_the_user(seeing: ServerProcess) -> None:
    asked = forms.responses(QWEN, SEVERAL)
    kept = {key: asked[key] for key in ("model", "input")}
    compact = answered(seeing, f"{RESPONSES}/compact", kept)
    images = [
        part
        for item in compact["output"]
        for part in item.get("content", [])
        if part["type"] == "input_image"
    ]
    assert images == [forms.input_image(file) for file in (ONE, OTHER, OTHER)]
    more = {"model": QWEN, "input": [*compact["output"], {"role": "user", "content": "Go on."}]}
    assert answered(seeing, RESPONSES, {**more, "max_output_tokens": 4})["output"]


@pytest.mark.parametrize(
    ("policy", "least", "most"), [("rolling", 3000, 6000), *wide([("truncate", 6000, 8192)])]
)
def test_a_conversation_that_is_cut_drops_an_image_with_its_turn(
    seeing: ServerProcess, policy: str, least: int, most: int
) -> None:
    """The context has 8,192 tokens, and each image takes about a thousand."""
    told: list[Any] = []
    for number in range(10):
        told.append(("user", [encoded(noise(250, 250, seed=number), "PNG"), f"Number {number}."]))
        told.append(("assistant", ["Seen."]))
    told.append(("user", ["Which was the last?"]))
    refused = post(seeing, CHAT, forms.chat(QWEN, told))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    body = forms.chat(QWEN, told, context_overflow=policy)
    assert least < answered(seeing, CHAT, body)["usage"]["prompt_tokens"] < most


def test_a_prefix_with_an_image_is_probed_pinned_and_exported(seeing: ServerProcess) -> None:
    body = forms.chat(QWEN, [("user", [encoded(noise(96, 96, seed=77), "PNG"), "Tell me. " * 40])])
    used = answered(seeing, CHAT, body)["usage"]["prompt_tokens"]
    probed = answered(seeing, "/v1/cache/probe", body)
    assert probed["prompt_tokens"] == used
    assert probed["cached_tokens"] > 144
    pin = answered(seeing, "/v1/cache/pin", body)
    assert pin["hot_tokens"] > 144
    archive = post(seeing, "/v1/cache/export", body)
    assert archive.status_code == 200
    assert int(archive.headers["x-omlx-cached-tokens"]) > 144
    ended = seeing.http.delete(f"{seeing.url}/v1/cache/pins/{pin['id']}")
    assert ended.status_code == 200
