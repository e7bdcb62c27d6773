"""Conversations with images: what a turn computes, what is kept, how long it may take."""

from pathlib import Path
from typing import Any

import pytest

from omlx_server.settings import Settings
from tests.api.harness import (
    CHAT,
    UNPROBED,
    ServerProcess,
    assert_envelope,
    cached,
    samples,
    serving,
    text_of,
)
from tests.api.images import forms
from tests.api.images.forms import answered, post
from tests.images.files import encoded, noise, png

BLOCK = Settings().cache.block_tokens
# Runs of an image of 64 x 48 pixels, each of which a tower computes by itself.
RUNS = {"qwen3_vl": 1, "gemma3": 1, "smolvlm": 5}


def seen(server: ServerProcess) -> float:
    """How many runs of image tokens towers have computed."""
    return samples(server.http.get(f"{server.url}/metrics").text)["omlx_images_computed_total"]


@pytest.mark.parametrize("family", RUNS)
def test_ten_turns_about_two_images_see_each_once(seeing: ServerProcess, family: str) -> None:
    first, second = (encoded(noise(48, 64, seed=seed), "PNG") for seed in (31, 32))
    before, told, known = seen(seeing), list[Any](), 0
    for turn in range(10):
        pieces: list[str | bytes] = [f"This is turn {turn} of our talk about two images. " * 3]
        pieces += [first] if turn == 0 else [second] if turn == 4 else []
        told.append(("user", pieces))
        answer = answered(seeing, CHAT, forms.chat(f"org/{family}", told))
        usage = answer["usage"]
        assert cached(answer) > known - 2 * BLOCK
        known = usage["prompt_tokens"]
        told.append(("assistant", [text_of(answer)]))
    assert seen(seeing) - before == 2 * RUNS[family]
    assert known > 2 * BLOCK


def test_another_conversation_about_a_known_image_does_not_see_it_again(
    seeing: ServerProcess,
) -> None:
    image = encoded(noise(48, 64, seed=33), "PNG")
    forms.by_chat(seeing, "org/qwen3_vl", [("user", [image, "a"])])
    before = seen(seeing)
    for text in ("b", "Another beginning. " * 20):
        forms.by_chat(seeing, "org/qwen3_vl", [("user", [text, image, "c"])])
    assert seen(seeing) == before


def test_counting_computes_nothing(seeing: ServerProcess) -> None:
    image = encoded(noise(48, 64, seed=34), "PNG")
    before = seen(seeing)
    body = forms.messages("org/qwen3_vl", [("user", [image, "a"])])
    answered(seeing, forms.COUNT_MESSAGES, body)
    answered(seeing, "/v1/cache/probe", forms.chat("org/qwen3_vl", [("user", [image, "a"])]))
    assert seen(seeing) == before


def test_images_end_with_the_time_of_their_request(vision_models: Path, tmp_path: Path) -> None:
    """Each of them has 49 million pixels, and takes a second or so of a core."""
    files = [png((7000, rows), bytes(rows * (1 + 3 * 7000))) for rows in range(6996, 7000)]
    sets = [f"models.dirs={vision_models}", UNPROBED, "server.request_timeout_seconds=0.2"]
    with serving("org/qwen3_vl", tmp_path, *sets) as server:
        before = server.cpu
        body = forms.chat("org/qwen3_vl", [("user", [*files, "a"])])
        error = assert_envelope(post(server, CHAT, body), 504)
        assert error["code"] == "deadline_exceeded"
        server.wait_idle()
        assert server.cpu - before < 4, "all of them were decoded"
