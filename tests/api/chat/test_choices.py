"""What clients get of a turn of the engine: one delta for all tokens of a choice, and few Python
calls on its way out."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from types import FrameType

import pytest
from starlette.types import Message

from omlx_server.api.chat.choices import ChoiceDelta, Choices
from omlx_server.api.http.sse import EventStream, event
from omlx_server.api.metrics.metrics import AppMetrics
from omlx_server.core.request import FinishReason, Request, RequestId, SamplingParams, TokenEvent
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.engine.client.generation import Generation
from omlx_server.errors import InternalError
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.tokenizer import Tokenizer
from tests.api.fixed import fixed_models
from tests.text import makers

ID = RequestId("r")
TURNS = 200
# Of the HTTP layers there is only the event stream here.
MOST_CALLS = 37


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.load(makers.save(folder, "byte_level", "{{ messages }}"))


def choices_of(tokenizer: Tokenizer, *, n: int = 1, stops: tuple[str, ...] = ()) -> Choices:
    request = Request(ID, (1, 2, 3), SamplingParams(max_tokens=1000), n=n)
    generation = Generation(AsyncEngine(lambda problem: None), 1, request)
    return Choices(generation, tokenizer, AnswerForm(stops), AppMetrics(fixed_models()).of("model"))


def tokens_of(tokenizer: Tokenizer, text: str, index: int = 0) -> list[TokenEvent]:
    return [TokenEvent(ID, index, token) for token in tokenizer.encode(text, special=False)]


def end(index: int = 0, why: FinishReason = FinishReason.STOP) -> TokenEvent:
    return TokenEvent(ID, index, finish=why, error="a flaw")


async def read(
    choices: Choices, *turns: Sequence[TokenEvent], into: list[ChoiceDelta] | None = None
) -> list[ChoiceDelta]:
    """The deltas of these turns of the engine, each of which is read before the next comes."""
    found = [] if into is None else into

    async def reader() -> None:
        async for delta in choices.deltas():
            found.append(delta)

    task = asyncio.ensure_future(reader())
    for turn in turns:
        await asyncio.sleep(0)
        for one in turn:
            choices.generation.mailbox.put_nowait(one)
        for _ in range(3):
            await asyncio.sleep(0)
    await task
    return found


def test_the_tokens_of_a_turn_come_together(tokenizer: Tokenizer) -> None:
    turns = [tokens_of(tokenizer, "Hello there"), [*tokens_of(tokenizer, ", you"), end()]]
    choices = choices_of(tokenizer)
    deltas = asyncio.run(read(choices, *turns))
    assert [delta.text for delta in deltas] == ["Hello there", ", you"]
    assert [delta.finish for delta in deltas] == [None, "stop"]
    assert choices.usage.completion == sum(map(len, turns)) - 1


def test_each_choice_has_its_own_delta(tokenizer: Tokenizer) -> None:
    one, other = tokens_of(tokenizer, "One"), tokens_of(tokenizer, "Two", 1)
    mixed = [event for pair in zip(one, other, strict=False) for event in pair]
    deltas = asyncio.run(read(choices_of(tokenizer, n=2), mixed, [end(1), end(0)]))
    assert {delta.index: delta.text for delta in deltas[:2]}.keys() == {0, 1}
    assert [(delta.index, delta.finish) for delta in deltas[2:]] == [(1, "stop"), (0, "stop")]


def test_nothing_is_shown_behind_a_stop_string_of_the_same_turn(tokenizer: Tokenizer) -> None:
    choices = choices_of(tokenizer, stops=("STOP",))
    turn = [*tokens_of(tokenizer, "ab STOP and more"), end(why=FinishReason.LENGTH)]
    [delta] = asyncio.run(read(choices, turn))
    assert (delta.text, delta.finish, delta.stopped) == ("ab ", "stop", "STOP")
    assert choices.usage.completion < len(turn) - 1


def test_what_came_before_an_error_is_shown(tokenizer: Tokenizer) -> None:
    turn = [*tokens_of(tokenizer, "half"), end(why=FinishReason.ERROR)]
    found = list[ChoiceDelta]()
    with pytest.raises(InternalError, match="a flaw"):
        asyncio.run(read(choices_of(tokenizer), turn, into=found))
    assert [delta.text for delta in found] == ["half"]


def test_an_error_of_a_choice_that_has_ended_is_none(tokenizer: Tokenizer) -> None:
    """A stop string ends it before, in the same turn, and the other choice goes on."""
    choices = choices_of(tokenizer, n=2, stops=("STOP",))
    turn = [*tokens_of(tokenizer, "a STOP"), end(why=FinishReason.ERROR), end(1)]
    deltas = asyncio.run(read(choices, turn))
    assert [(delta.index, delta.finish) for delta in deltas] == [(0, "stop"), (1, "stop")]


class Counted:
    """Counts Python calls while a stream is written."""

    def __init__(self) -> None:
        self.calls = self.writes = 0

    def note(self, frame: FrameType, kind: str, _: object) -> None:
        self.calls += kind == "call" and "asyncio" not in frame.f_code.co_filename

    async def send(self, message: Message) -> None:
        self.writes += message["type"] == "http.response.body"

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def stream(choices: Choices, tokens: Sequence[TokenEvent], counted: Counted) -> None:
    """An answer of which a token comes in each turn."""

    async def events() -> AsyncGenerator[bytes, None]:
        async for delta in choices.deltas():
            yield event({"index": delta.index, "text": delta.text})

    answer = EventStream(events(), 60)({"type": "http"}, counted.receive, counted.send)
    task = asyncio.ensure_future(answer)
    await asyncio.sleep(0)
    sys.setprofile(counted.note)
    try:
        for token in tokens:
            choices.generation.mailbox.put_nowait(token)
            await asyncio.sleep(0)
    finally:
        sys.setprofile(None)
    choices.generation.mailbox.put_nowait(end())
    await task


def test_a_token_takes_few_calls_on_its_way_out(tokenizer: Tokenizer) -> None:
    """It was 70 when each chunk had a task of its own, and each token a place in a histogram of the
    library's."""
    counted, [token, *_] = Counted(), tokens_of(tokenizer, "and")
    asyncio.run(stream(choices_of(tokenizer), [token] * TURNS, counted))
    assert counted.writes >= TURNS
    assert counted.calls / TURNS < MOST_CALLS
