"""A long text in any field costs the event loop next to nothing, and is answered or refused: for
every field of every route in the OpenAPI document."""

import time
from collections.abc import Iterator
from itertools import count

import pytest

from omlx_server.models.hub.names import LONGEST_NAME
from tests.api.harness import ADMIN_TOKEN
from tests.api.long_texts import LongText, long_texts
from tests.api.moments import Open, Place, opened, play
from tests.api.routes import described

__all__ = ["opened"]

SIZE, LONGEST = 300_000, 30_000_000
MOST_SECONDS = 0.15
"""Of the event loop's thread, for one request. A refusal takes a hundredth."""
NO_BOUND = {
    *("content", "text", "refusal", "prompt", "suffix", "system", "instructions", "input"),
    *("reasoning", "reasoning_content", "thinking", "encrypted_content", "arguments", "output"),
    *("description", "query", "documents", "title", "context", "source"),
    *("image_url", "url", "data", "images"),
    *("tools", "tool_calls", "function", ""),
}
"""Fields whose texts become part of a prompt, or are images; of the last ones that is what the chat
template gets of a key that is not known here."""
NOT_HERE = 503
"""The app of the tests fetches no models and edits no settings."""
AT_FULL_LENGTH = {
    '/v1/chat/completions {"model": ',
    '/v1/chat/completions {"messages": [{"content": ',
    '/v1/responses {"metadata": {"5": ',
    '/v1/completions {"guided_json": ',
    "/admin/settings {",
}


def test_only_prompts_and_images_have_no_bound() -> None:
    found = list(long_texts(described(), {"/": "tiny"}))
    strings = [one for one in found if "nested" not in one.forms]
    assert {one.field for one in strings if one.bound is None} == NO_BOUND
    assert {one.bound for one in strings if one.field == "model"} == {LONGEST_NAME}
    assert len(found) > 400


def asked() -> Iterator[tuple[LongText, str, int]]:
    """Each place, in turn with one of the forms that it takes; the first one of each field of a
    route with all of them, where the document does not bound the text. Of what another route takes
    in the same body, every third place."""
    bodies, fields, turns = set[bytes](), set[tuple[str, str]](), count()
    doubles = count()
    for one in long_texts(described(), {"/": "tiny"}):
        only, field = one.forms[next(turns) % len(one.forms)], (one.path, one.field)
        is_double, is_first = one.document in bodies, field not in fields
        bodies.add(one.document)
        if one.bound is None and not is_double:
            fields.add(field)
        if not is_double or next(doubles) % 3 == 0:
            for form in one.forms if one.bound is None and is_first and not is_double else [only]:
                yield one, form, SIZE
        if one.place in AT_FULL_LENGTH:
            yield one, "address", LONGEST


async def seconds_for(place: Place, one: LongText, body: bytes) -> tuple[float, int]:
    """The processor time of the event loop's thread, and the status of the answer."""
    headers = {"content-type": "application/json", "x-admin-token": ADMIN_TOKEN}
    begun = time.thread_time()
    answer = await place.http.request(one.method, one.path, content=body, headers=headers)
    return time.thread_time() - begun, answer.status_code


def test_the_event_loop_goes_on_beside_long_texts(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_ADMIN_TOKEN", ADMIN_TOKEN)

    async def scene() -> None:
        full = set()
        async with opened() as place:
            await place.ready()
            for one, form, size in asked():
                seconds, status = await seconds_for(place, one, one.body(form, size))
                told = f"{form} of {size} at {one.place}: {status} after {seconds:.2f} s"
                assert status < 500 or status == NOT_HERE, told
                assert status != 401, told
                assert status == 400 or one.bound is None or size < one.bound, told
                assert seconds < MOST_SECONDS, told
                full |= {one.place} if size == LONGEST else set()
        assert full == AT_FULL_LENGTH

    play(scene())
