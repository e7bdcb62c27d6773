"""The official ollama package against a real server."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import ollama
import pytest
from ollama import ResponseError

from tests.api.harness import ADMIN_TOKEN, ServerProcess, wait_for
from tests.api.images import forms
from tests.api.ollama.asking import GREEDY, TALK
from tests.api.ollama.conftest import FAR

Run = Callable[..., Any]
FORM = {"type": "object", "properties": {"x": {"enum": ["a"]}}, "required": ["x"]}
NO_THOUGHTS = "org/tiny"


def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: where
    """
    return f"Rain in {city}"


def test_a_chat_is_the_same_whole_and_streamed(client: ollama.Client, asynchronously: Run) -> None:
    whole = client.chat("org/tiny", TALK, options=GREEDY)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 12)
    for duration in (whole.total_duration, whole.prompt_eval_duration, whole.eval_duration):
        assert duration is not None and 0 < duration <= (whole.total_duration or 0)
    assert whole.created_at and whole.load_duration is not None
    *parts, last = client.chat("org/tiny", TALK, options=GREEDY, stream=True)
    assert parts and not any(part.done for part in parts)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert last.done_reason == "length" and last.message.content == ""
    assert last.prompt_eval_count == whole.prompt_eval_count

    async def ask(client: ollama.AsyncClient) -> tuple[str, str]:
        told = await client.chat("org/tiny:latest", TALK, options=GREEDY)
        stream = await client.chat("small", TALK, options=GREEDY, stream=True)
        return told.message.content or "", "".join(
            [part.message.content or "" async for part in stream]
        )

    assert asynchronously(ask) == (whole.message.content,) * 2


def test_a_prompt_is_answered_as_a_message_or_continued_as_it_is(client: ollama.Client) -> None:
    said = client.chat("org/tiny", TALK, options=GREEDY).message.content
    answer = client.generate("org/tiny", TALK[0]["content"], options=GREEDY)
    assert (answer.response, answer.context) == (said, [])
    system = [{"role": "system", "content": "Be brief."}, *TALK]
    told = client.chat("org/tiny", system, options=GREEDY)
    asked = {"model": "org/tiny", "prompt": TALK[0]["content"], "options": GREEDY}
    briefly = client.generate(**asked, system="Be brief.", context=answer.context)
    assert briefly.response == told.message.content
    raw = client.generate(**asked, raw=True)
    assert raw.response != said and (raw.prompt_eval_count or 0) < (told.prompt_eval_count or 0)
    parts = list(client.generate(**asked, stream=True))
    assert "".join(part.response or "" for part in parts) == said
    assert [part.context for part in parts if part.context is not None] == [[]]


def test_a_form_is_kept_to(client: ollama.Client) -> None:
    wanted: tuple[Any, ...] = ("json", FORM)
    for form in wanted:
        told = client.chat("org/tiny", TALK, format=form, options={"num_predict": 60, "seed": 3})
        assert (told.message.content or "").startswith("{")
    assert told.done_reason == "stop" and "a" in (told.message.content or "")
    free = client.chat("org/tiny", TALK, format="", options=GREEDY)
    assert free.message.content == client.chat("org/tiny", TALK, options=GREEDY).message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_with_arguments_as_an_object(client: ollama.Client, stream: bool) -> None:
    """Whether a random model calls it or gives the form is a matter of the seed."""
    turns: list[Any] = [{"role": "user", "content": "Weather?"}]
    for seed in range(60):
        options = {"num_predict": 200, "temperature": 2, "seed": seed}
        asked = {"model": "org/tiny", "tools": [weather], "format": FORM, "options": options}
        told = client.chat(messages=turns, stream=stream, **asked)  # type: ignore[call-overload]
        answers = list(told) if stream else [told]
        calls = [call for answer in answers for call in answer.message.tool_calls or ()]
        if calls:
            break
    assert {call.function.name for call in calls} == {"weather"}
    assert all(set(call.function.arguments) == {"city"} for call in calls)
    assert answers[-1].done_reason == "stop"
    turns += [answer.message for answer in answers if answer.message.tool_calls]
    turns += [{"role": "tool", "tool_name": "weather", "content": "Rain"} for _ in calls]
    after = client.chat("org/tiny", turns, tools=[weather], options=GREEDY)
    assert after.eval_count == 12


def test_thoughts_stand_beside_the_content(client: ollama.Client) -> None:
    for think in (True, "low", None):
        told = client.chat("org/thinker", TALK, think=think, options=GREEDY)
        assert told.message.thinking and not told.message.content
    parts = client.chat("org/thinker", TALK, think=True, options=GREEDY, stream=True)
    assert "".join(part.message.thinking or "" for part in parts)
    silent = client.chat("org/thinker", TALK, think=False, options=GREEDY)
    assert silent.message.content and not silent.message.thinking
    assert client.generate("org/thinker", "Hi", think=True, options=GREEDY).thinking


def test_images_are_seen(client: ollama.Client) -> None:
    texts = []
    for image in (forms.ONE, forms.OTHER):
        turn = {"role": "user", "content": "What is it?", "images": [image]}
        told = client.chat("org/seeing", [turn], options=GREEDY)
        texts.append(told.message.content)
        said = client.generate("org/seeing", "What is it?", images=[image], options=GREEDY)
        assert said.response == told.message.content
    assert texts[0] != texts[1]
    with pytest.raises(ResponseError) as caught:
        client.chat("org/tiny", [turn])
    assert caught.value.status_code == 400 and "text only" in caught.value.error


def test_texts_are_embedded(client: ollama.Client, own: ServerProcess) -> None:
    told = client.embed("minilm", ["Hi", "Ho"])
    assert [len(vector) for vector in told.embeddings] == [384, 384]
    assert told.prompt_eval_count and told.total_duration
    assert [list(vector) for vector in told.embeddings] == embedded(own, ["Hi", "Ho"])
    assert [list(client.embeddings("minilm", "Hi").embedding)] == embedded(own, ["Hi"])
    assert list(client.embeddings("minilm", "").embedding) == []
    assert list(client.embed("minilm", []).embeddings) == []
    assert list(client.embed("minilm", "").embeddings) == []
    assert client.generate("minilm", keep_alive=0).done_reason == "unload"
    wait_for(lambda: not [one for one in client.ps().models if "MiniLM" in (one.model or "")])
    assert len(client.embed("minilm", "Hi " * 2000).embeddings) == 1
    wrongs: tuple[dict[str, Any], ...] = ({"truncate": False}, {"dimensions": 9999})
    for wrong in wrongs:
        with pytest.raises(ResponseError) as caught:
            client.embed("minilm", "Hi " * 2000, **wrong)
        assert caught.value.status_code == 400


def embedded(server: ServerProcess, texts: list[str]) -> list[list[float]]:
    """What /v1/embeddings gives."""
    asked = {"model": "minilm", "input": texts}
    found = server.http.post(f"{server.url}/v1/embeddings", json=asked).json()["data"]
    return [one["embedding"] for one in found]


def test_what_there_is_is_listed_and_shown(client: ollama.Client) -> None:
    found = {model.model: model for model in client.list().models}
    assert found.keys() >= {"org/tiny", "org/thinker", "org/seeing", "small"}
    tiny = found["org/tiny"]
    assert tiny.size and tiny.modified_at and len(tiny.digest or "") == 64
    assert found["small"].digest == tiny.digest != found["org/thinker"].digest
    assert tiny.details and (tiny.details.format, tiny.details.family) == ("mlx", "llama")
    assert tiny.details.parameter_size == "88K"
    shown = client.show("org/tiny:latest")
    assert shown.capabilities == ["completion"] and "<|im_start|>" in (shown.template or "")
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 4096
    assert "thinking" in (client.show("org/thinker").capabilities or ())
    assert "vision" in (client.show("org/seeing").capabilities or ())
    changed = client.show("org/leaver")
    assert "thinking" in (changed.capabilities or ()) and "think" in (changed.template or "")
    assert "temperature 0.25" in (changed.parameters or "").splitlines()
    with pytest.raises(ResponseError) as caught:
        client.show("org/tiny:nobody")
    assert caught.value.status_code == 404 and "no adapter 'nobody'" in caught.value.error
    embedder = next(name for name in found if name and "MiniLM" in name)
    assert client.show(embedder).capabilities == ["embedding"]


def test_a_model_stays_as_long_as_a_request_says(client: ollama.Client) -> None:
    def expiry() -> datetime | None:
        found = {model.model: model.expires_at for model in client.ps().models}
        return found.get("org/leaver")

    def seconds_left() -> float:
        there = expiry()
        assert there is not None
        return (there - datetime.now(UTC)).total_seconds()

    loaded = client.chat("org/leaver", keep_alive="5m")
    assert (loaded.done_reason, loaded.message.content) == ("load", "")
    assert 200 < seconds_left() <= 300
    client.chat("org/leaver", TALK, options=GREEDY, keep_alive=-1)
    assert seconds_left() > 1e9
    for ages in (1e12, "999999999999h"):
        client.chat("org/leaver", keep_alive=ages)
        assert seconds_left() > 1e9
    client.chat("org/leaver", TALK, options=GREEDY, keep_alive=90)
    assert 30 < seconds_left() <= 90
    client.chat("org/leaver", TALK, options=GREEDY)  # as the settings say
    assert seconds_left() > 1e9
    client.chat("org/leaver", TALK, options=GREEDY, keep_alive=0)
    wait_for(lambda: expiry() is None)
    assert client.generate("org/leaver", keep_alive="1h").done_reason == "load"
    assert client.generate("org/leaver", keep_alive=0).done_reason == "unload"
    wait_for(lambda: expiry() is None)
    assert client.generate("org/leaver", keep_alive=0).done_reason == "unload"
    assert expiry() is None


@pytest.mark.parametrize(
    ("status", "said", "asked"),
    [
        (404, "model not found", {"model": "nobody"}),
        (404, "model not found", {"model": "nobody", "messages": [], "keep_alive": 0}),
        (400, "minilm", {"model": "minilm"}),
        (400, "temperature", {"options": {"temperature": "hot"}}),
        (400, "temperature", {"options": {"temperature": 9}}),
        (400, "keep_alive", {"keep_alive": "soon"}),
        (400, "maximum context length", {"messages": [{"role": "user", "content": "a" * 9000}]}),
    ],
)
def test_what_is_wrong_has_ollamas_status(
    client: ollama.Client, status: int, said: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(ResponseError) as caught:
        client.chat(**{"model": "org/tiny", "messages": TALK, **asked})
    assert (caught.value.status_code, said in caught.value.error) == (status, True)


def test_a_conversation_that_is_too_long_is_cut_where_the_request_says_so(
    own: ServerProcess,
) -> None:
    turns = [{"role": role, "content": "a" * 900} for role in ("user", "assistant") * 5]
    body = {"model": "org/tiny", "messages": [*turns, *TALK], "options": GREEDY, "stream": False}
    for truncate, status in ((None, 400), (False, 400), (True, 200)):
        told = own.http.post(f"{own.url}/api/chat", json={**body, "truncate": truncate})
        assert told.status_code == status, told.text
    assert int(told.headers["x-omlx-dropped-messages"]) > 0


def test_a_model_is_pulled_by_its_owner_only(own: ServerProcess, client: ollama.Client) -> None:
    for stream in (False, True):
        with pytest.raises(ResponseError) as caught:
            list(client.pull(FAR, stream=stream))
        assert caught.value.status_code == 401
        assert caught.value.error.startswith("send Authorization: Bearer TOKEN, the admin token")
    reason = '"error":"admin_token_needed","reason":"no admin token, or a wrong one"'
    wait_for(lambda: reason in own.log)
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    with ollama.Client(own.url, headers=headers, trust_env=False) as owner:
        steps = list(owner.pull(f"{FAR}:latest", stream=True))
        assert (steps[0].status, steps[-1].status) == ("pulling manifest", "success")
        assert all(step.digest and step.total for step in steps if step.completed is not None)
        assert owner.pull(FAR).status == "success"
        for name in (FAR, f"hf.co/{FAR}", f"https://huggingface.co/{FAR}/tree/main"):
            assert client.chat(name, TALK, options=GREEDY).eval_count == 12
        for name, status in (("nobody", 404), ("x" * 1025, 400)):
            with pytest.raises(ResponseError) as caught:
                owner.pull(name)
            assert caught.value.status_code == status
        owner.pull(f"https://huggingface.co/{FAR}?token=secret")
        assert '"route":"/api/pull"' in own.log and "secret" not in own.log
        with pytest.raises(ResponseError) as caught:
            list(owner.pull("who/knows", stream=True))
        assert "who/knows was not found" in caught.value.error
