"""Large requests are worked on beside the event loop: what the loop itself does for one hardly
grows with the conversation. Counted in calls of Python functions: no busy machine makes more."""

import sys
from types import FrameType
from typing import Any

import orjson
import pytest

from tests.api.harness import CHAT, Json
from tests.api.moments import Open, Place, opened, play

__all__ = ["opened"]

TEXT = "a message of a conversation that has become long "
# An item that is checked or converted by Python functions takes ten calls or more. The answer of
# /v1/responses/compact, a long one, takes some thousand more or fewer, by how its tokens come.
MOST_FOR_ONE = 5
FEW, MANY = 2000, 6000
"""Both make bodies that are large, and prompts that are too long for the model."""


def chat(count: int) -> Json:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": TEXT} for n in range(count - 1)]
    return {"messages": [*messages, {"role": "user", "content": TEXT}], "max_tokens": 4}


def parts(count: int) -> Json:
    content = [{"type": "text", "text": TEXT}] * count
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4}


def items(count: int) -> Json:
    return {"input": chat(count)["messages"]}


async def calls_for(place: Place, path: str, body: Json) -> int:
    """The Python functions that the thread of the event loop calls to answer `body`."""
    content, calls = orjson.dumps({"model": "tiny", **body}), 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        answer = await place.http.post(
            path, content=content, headers={"content-type": "application/json"}
        )
    finally:
        sys.setprofile(None)
    assert answer.status_code in (200, 400), answer.text
    return calls


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat),
        (CHAT, parts),
        ("/tokenize", lambda count: {"messages": chat(count)["messages"]}),
        ("/v1/messages", chat),
        ("/v1/messages/count_tokens", chat),
        ("/v1/responses", items),
        ("/v1/responses/input_tokens", items),
        ("/v1/responses/compact", items),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_the_loop_does_hardly_grows_with_a_conversation(
    opened: Open, path: str, body: Any
) -> None:
    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            await calls_for(place, path, body(FEW))  # what is made with the first request
            few, many = [await calls_for(place, path, body(count)) for count in (FEW, MANY)]
            assert many - few < MOST_FOR_ONE * (MANY - FEW), (few, many)

    play(scene())
