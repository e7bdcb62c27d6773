"""Images that are refused: 400 in the API's own shape, at once, and nothing is lost."""

import base64
from pathlib import Path
from typing import Any

import pytest

from omlx_server.api.models.image_reader import TextOnly
from tests.api.harness import CHAT, MARKER, UNPROBED, Json, ServerProcess, assert_envelope, serving
from tests.api.images import forms
from tests.api.images.conftest import MOST_IMAGES
from tests.api.images.forms import ASKED, ONE, post
from tests.images.bad_images import bad_images

QWEN = "org/qwen3_vl"
TEXT = {"type": "text", "text": "What is it?"}


def of_user(*parts: Json, model: str = QWEN) -> Json:
    messages = [{"role": "user", "content": [*parts, TEXT]}]
    return {"model": model, "messages": messages, "max_tokens": 4}


def refused(server: ServerProcess, body: Json) -> Json:
    return assert_envelope(post(server, CHAT, body), 400)


def test_bad_images_are_told_apart_and_cost_little(seeing: ServerProcess) -> None:
    song, _ = forms.by_chat(seeing, QWEN, ASKED)
    memory = seeing.memory
    for name, data, why in (bad for bad in bad_images() if bad[1]):
        before = seeing.cpu
        error = refused(seeing, of_user(forms.image_part(ONE), forms.image_part(data)))
        assert why in error["message"], name
        assert error["param"] == "messages.0.content.1.image_url"
        assert seeing.cpu - before < 1
    assert seeing.memory - memory < 64 << 20
    assert forms.by_chat(seeing, QWEN, ASKED)[0] == song


@pytest.mark.parametrize("path", [CHAT, forms.RESPONSES, forms.MESSAGES])
def test_each_api_refuses_in_its_own_shape(seeing: ServerProcess, path: str) -> None:
    make = {CHAT: forms.chat, forms.RESPONSES: forms.responses, forms.MESSAGES: forms.messages}
    response = post(seeing, path, make[path](QWEN, [("user", ["What?", ONE[:-20]])]))
    if path == forms.MESSAGES:
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
    else:
        error = assert_envelope(response, 400)
        expected = "input" if path == forms.RESPONSES else "messages.0.content.1.image_url"
        assert error["param"] == expected
    assert "is cut off" in error["message"]


URLS = [
    (f"https://{MARKER}.example/cat.png", "opens no addresses"),
    (f"file:///{MARKER}.png", "opens no files"),
    (f"/{MARKER}.png", "opens no files"),
    ("", "as a data URL"),
    ("data:image/png;base64,", "is empty"),
    ("data:image/png;base64,AAA*", "not base64"),
    ("data:image/png;base64", "no comma"),
    (f"data:image/png;base64,{base64.b64encode(b'#!/bin/sh').decode()}", "script"),
]


@pytest.mark.parametrize(("url", "why"), URLS)
def test_addresses_and_wrong_urls_are_refused(seeing: ServerProcess, url: str, why: str) -> None:
    for given in (url, {"url": url}):
        error = refused(seeing, of_user({"type": "image_url", "image_url": given}))
        assert why in error["message"]
    block = {"type": "image", "source": {"type": "url", "url": url}}
    response = post(seeing, forms.MESSAGES, of_user(block))
    assert (response.status_code, why in response.text) == (400, True)
    part = {"type": "input_image", "image_url": url}
    asked = {"model": QWEN, "input": [{"role": "user", "content": [part]}]}
    assert why in assert_envelope(post(seeing, forms.RESPONSES, asked), 400)["message"]


PARTS: list[Json] = [
    {"type": "image_url"},
    {"type": "image_url", "image_url": None},
    {"type": "image_url", "image_url": 5},
    {"type": "image_url", "image_url": {}},
    {"type": "image_url", "image_url": {"url": 5}},
    {"type": "image_url", "image_url": {"url": forms.url(ONE), "detail": "medium"}},
    {"type": "image_url", "image_url": [forms.url(ONE)]},
    {"type": "image"},
    {"type": "image", "image": forms.url(ONE)},
    {"type": "input_image", "image_url": forms.url(ONE)},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
]


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_other_kinds_and_wrong_types_are_refused(
    seeing: ServerProcess, part: Json
) -> None:
    error = refused(seeing, of_user(part))
    assert error["param"] and error["param"].startswith("messages.0.content")


BLOCKS: list[Json] = [
    {"type": "image"},
    {"type": "image", "source": ONE[:2].hex()},
    {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%41%41"}},
    {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
]


@pytest.mark.parametrize("block", BLOCKS)
def test_wrong_blocks_are_refused(seeing: ServerProcess, block: Json) -> None:
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [block]}
    for content in ([block], [result]):
        messages = [{"role": "user", "content": content}]
        for path in (forms.MESSAGES, forms.COUNT_MESSAGES):
            body = {"model": QWEN, "messages": messages, "max_tokens": 4}
            assert post(seeing, path, body).status_code == 400


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_user_and_tool_show_images(seeing: ServerProcess, role: str) -> None:
    hello = {"role": "user", "content": "Hi"}
    message = {"role": role, "content": [TEXT, forms.image_part(ONE)]}
    body = {"model": QWEN, "messages": [message, hello], "max_tokens": 4}
    error = refused(seeing, body)
    assert "only messages of user and tool" in error["message"]
    assert error["param"] == "messages.0.content.1.image_url"
    item = {"role": role, "content": [forms.input_image(ONE)]}
    asked = {"model": QWEN, "input": [item, hello]}
    error = assert_envelope(post(seeing, forms.RESPONSES, asked), 400)
    assert "only the user and tools" in error["message"]
    turns: dict[str, Any] = {"messages": [hello], "system": [forms.image_block(ONE)]}
    if role == "assistant":
        turns = {"messages": [hello, {"role": role, "content": [forms.image_block(ONE)]}]}
    response = post(seeing, forms.MESSAGES, {"model": QWEN, "max_tokens": 4, **turns})
    assert (response.status_code, "only turns of the user" in response.text) == (400, True)


def test_the_number_of_images_is_bounded(seeing: ServerProcess) -> None:
    parts = [forms.image_part(ONE)] * MOST_IMAGES
    assert post(seeing, CHAT, of_user(*parts)).status_code == 200
    error = refused(seeing, of_user(*parts, forms.image_part(ONE)))
    assert f"there are {MOST_IMAGES + 1} images" in error["message"]
    assert error["param"] == f"messages.0.content.{MOST_IMAGES}.image_url"


def test_a_prompt_can_not_end_with_an_image(seeing: ServerProcess) -> None:
    """This model's template ends each message; a message that goes on has no end."""
    messages = [{"role": "user", "content": [TEXT, forms.image_part(ONE)]}]
    going = {"add_generation_prompt": False, "continue_final_message": True}
    response = post(seeing, CHAT, {"model": QWEN, "messages": messages, **going})
    assert response.status_code == 200, "the markup stands behind the tokens of the image"


@pytest.mark.parametrize("path", [CHAT, forms.RESPONSES, forms.MESSAGES])
def test_a_model_for_text_refuses_images_by_name(seeing: ServerProcess, path: str) -> None:
    make = {CHAT: forms.chat, forms.RESPONSES: forms.responses, forms.MESSAGES: forms.messages}
    response = post(seeing, path, make[path]("org/tiny", ASKED))
    assert response.status_code == 400
    assert "the model 'org/tiny' takes text only" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("images.enabled=false", "images.enabled is"),
        ("speculation.mode=heads", "heads"),
    ],
)
def test_a_model_that_could_see_says_why_it_does_not(
    vision_models: Path, tmp_path: Path, setting: str, why: str
) -> None:
    sets = [f"models.dirs={vision_models}", UNPROBED, setting]
    with serving(QWEN, tmp_path, *sets) as server:
        error = refused(server, forms.chat(QWEN, ASKED))
        assert f"the model '{QWEN}' takes text only: " in error["message"]
        assert why in error["message"]
        text = forms.chat(QWEN, [("user", ["Hi"])])
        assert post(server, CHAT, text).status_code == 200


def test_a_reason_is_given_where_there_is_one() -> None:
    assert TextOnly().refusal("a", "messages.0").message == "the model 'a' takes text only"
    assert TextOnly("b").refusal("a", "messages.0").message == "the model 'a' takes text only: b"
