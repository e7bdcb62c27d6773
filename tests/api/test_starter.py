"""The starter model over real HTTP: sense, and the same text whatever the neighbours do."""

import asyncio
import random
from typing import Any

import httpx
from openai import OpenAI

from tests.api.harness import CHAT, Json, ServerProcess, text_of

QUESTION = "What is the capital of France?"
STRANGERS = (
    "Write a poem about the sea.",
    "List the days of the week.",
    "1, 2, 3, 4, 5, 6,",
    "Explain gravity to a child. " * 4,
    "Bonjour !",
    "Why is the sky blue?",
    "Repeat after me: abc. " * 10,
)


def test_it_knows_the_capital_of_france(server: ServerProcess) -> None:
    with OpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        names = [model.id for model in client.models.list().data]
        assert "starter" in names
        stream = client.chat.completions.create(
            model="starter",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=24,
            stream=True,
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "Paris" in text


def test_a_stop_string_inside_a_sentence(server: ServerProcess) -> None:
    free = text_of(server.chat(QUESTION, max_tokens=12))
    stopped = server.chat(QUESTION, max_tokens=12, stop=["is Par", "zzz"])
    assert text_of(stopped) == free[: free.index("is Par")]
    assert stopped["choices"][0]["finish_reason"] == "stop"


def test_texts_are_the_same_alone_and_among_seven_strangers(server: ServerProcess) -> None:
    """One that is greedy and one of a seed. The strangers join at random moments, end after
    different lengths, and some leave in the middle."""
    fields: dict[str, Any] = {"max_tokens": 16, "logprobs": True, "ignore_eos": True}
    seeded = {"temperature": 1, "top_p": 0.9, "seed": 42}
    questions = [server.body(QUESTION, **fields), server.body(QUESTION, **fields, **seeded)]
    alone = [text_of(server.post(question).json()) for question in questions]
    dice = random.Random(7)

    async def stranger(http: httpx.AsyncClient, content: str) -> None:
        await asyncio.sleep(dice.uniform(0, 0.5))
        body = server.body(content, max_tokens=dice.randrange(4, 24))
        body["temperature"] = dice.choice((0, 1.5))
        asking = asyncio.create_task(http.post(f"{server.url}{CHAT}", json=body))
        if dice.random() < 0.5:
            await asyncio.sleep(dice.uniform(0, 0.6))
            asking.cancel()
        await asyncio.wait({asking})

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
            strangers = [asyncio.create_task(stranger(http, text)) for text in STRANGERS]
            await asyncio.sleep(0.1)
            asked = [http.post(f"{server.url}{CHAT}", json=question) for question in questions]
            answers = await asyncio.gather(*asked)
            await asyncio.gather(*strangers)
        return answers

    assert [text_of(answer.json()) for answer in asyncio.run(crowd())] == alone
    server.wait_idle()


def test_each_turn_of_a_conversation_computes_what_is_new(server: ServerProcess) -> None:
    messages: list[Json] = []
    held = 0  # tokens of the conversation so far, the last answer included
    for question in ("Name a colour.", "Name another one.", "Which do you like?", "Why?"):
        messages.append({"role": "user", "content": question})
        body = {"model": server.model, "messages": messages, "temperature": 0, "max_tokens": 16}
        answer = server.post(body).json()
        usage = answer["usage"]
        computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        if held:
            assert computed <= usage["prompt_tokens"] - held + 2
        held = usage["prompt_tokens"] + usage["completion_tokens"]
        messages.append({"role": "assistant", "content": text_of(answer)})


def test_a_long_prompt_asked_again_computes_one_token(server: ServerProcess) -> None:
    prompt = " ".join(f"Fact {n}: the number {n} comes before {n + 1}." for n in range(20))
    cold, warm = (server.chat(f"{prompt} What is 2 + 2?", max_tokens=8) for _ in range(2))
    assert warm["usage"]["prompt_tokens"] > 200
    cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == warm["usage"]["prompt_tokens"] - 1
    assert text_of(warm) == text_of(cold)
    shared = server.chat(f"{prompt} What is 5 + 5?", max_tokens=8)["usage"]
    assert shared["prompt_tokens"] - shared["prompt_tokens_details"]["cached_tokens"] < 20
