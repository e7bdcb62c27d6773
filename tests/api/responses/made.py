"""Requests, and what a model might say, for tests."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from omlx_server.api.chat.choices import ChoiceDelta, LoggedToken, TokenCounts
from omlx_server.api.chat.finish import Finish
from omlx_server.api.responses import shapes
from omlx_server.api.responses.answers import Response
from omlx_server.api.responses.events import ResponseEvents
from omlx_server.api.responses.items.items import ItemIds
from omlx_server.api.responses.schema import ResponsesRequest
from omlx_server.api.responses.tool_names import ToolNames
from omlx_server.core.request import RequestDefaults
from omlx_server.text.answers.answer import TokenEntry
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought

ID = "resp_" + "5" * 32
USAGE = TokenCounts(prompt=7, completion=5, cached=3, reasoning=2)
NOW = 1_800_000_000
Event = dict[str, Any]


def asked(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.model_validate({"model": "m", "input": "Hi", **fields})


def opening(request: ResponsesRequest, *, is_stored: bool = True) -> dict[str, Any]:
    return {**_opening(request, is_stored=is_stored)}


def _opening(request: ResponsesRequest, *, is_stored: bool) -> Response:
    return shapes.new_response(request, ID, NOW, RequestDefaults(), is_stored=is_stored)


def progress(**fields: Any) -> ResponseEvents:
    request = asked(**fields)
    opening, names = _opening(request, is_stored=True), ToolNames(request.tools or ())
    return ResponseEvents(opening, ItemIds(ID), names, seals_reasoning=request.seals_reasoning)


def token(text: str) -> LoggedToken:
    entry = TokenEntry(text, -0.5, list(text.encode()))
    return LoggedToken(entry, (entry,))


def deltas(parts: Iterable[Part], finish: Finish) -> list[ChoiceDelta]:
    """Each part as it comes; the end comes by itself."""
    return [*(ChoiceDelta(0, (part,)) for part in parts), ChoiceDelta(0, finish=finish)]


def run(progress: ResponseEvents, given: Iterable[ChoiceDelta]) -> list[Event]:
    """All events of a response that goes well."""
    events: list[Any] = progress.begin()
    for delta in given:
        events += progress.add(delta)
    return events + progress.end(USAGE, NOW)


def output(progress: ResponseEvents) -> list[Any]:
    """The items of the response as it is by then."""
    return [*progress.response["output"]]


words = st.text(alphabet=" \nab é", min_size=0, max_size=5)


@st.composite
def answers(draw: st.DrawFn) -> list[Part]:
    """Reasoning, text, calls with text between them; in fragments."""
    parts: list[Part] = [Thought(text) for text in draw(st.lists(words, max_size=3))]
    parts += [Text(text) for text in draw(st.lists(words, max_size=3))]
    for index in range(draw(st.integers(0, 3))):
        parts.append(CallStart(index, f"call_{index}", f"f{index}"))
        fragments = draw(st.lists(st.sampled_from(['{"a"', ":", "1}", ""]), max_size=3))
        parts += [Arguments(index, fragment) for fragment in fragments]
        parts += [Text(text) for text in draw(st.lists(words, max_size=2))]
    return parts
