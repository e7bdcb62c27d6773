"""POST /v1/completions by the official openai package, with strict response validation but where
its types deny what OpenAI itself sends: no finish_reason in a stream before the end, and no
log-probability of a prompt's first token.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import mlx.core as mx
import openai
import pytest
from mlx_lm.models.cache import make_prompt_cache
from openai import OpenAI, Stream
from openai.types import Completion

from omlx_server.compute.model.loader import load
from omlx_server.text.tokenizer import Tokenizer
from tests.api.harness import ServerProcess, assert_envelope, wait_idle_soon
from tests.arrays import plain

MODEL = "org/tiny"
PROMPT = "Once upon a time there was a server"


def ask(client: OpenAI, prompt: Any = PROMPT, **fields: Any) -> Completion:
    """Greedy and of exact length, unless the fields say otherwise."""
    extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
    fields = {"temperature": 0, "max_tokens": 12, "model": MODEL, **fields}
    answer = client.completions.create(prompt=prompt, extra_body=extra, **fields)
    assert isinstance(answer, Completion)
    return answer


def ask_streaming(client: OpenAI, prompt: Any = PROMPT, **fields: Any) -> list[Completion]:
    fields = {"temperature": 0, "max_tokens": 12, "model": MODEL, **fields}
    stream = client.completions.create(
        prompt=prompt, stream=True, extra_body={"ignore_eos": True}, **fields
    )
    assert isinstance(stream, Stream)
    with stream:
        return list(stream)


@pytest.fixture
def lenient(tiny: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{tiny.url}/v1", api_key="x", max_retries=0) as lenient:
        yield lenient


def texts(answer: Completion) -> list[str]:
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


# -- prompts -----------------------------------------------------------------------------


def test_a_prompt_is_continued(client: OpenAI, tokenizer: Tokenizer) -> None:
    answer = ask(client)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length" and answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer.encode(PROMPT))
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (
        12,
        12 + answer.usage.prompt_tokens,
    )


def test_every_form_of_a_prompt_gives_the_same(client: OpenAI, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(PROMPT)
    expected = texts(ask(client))
    for prompt in ([PROMPT], tokens, [tokens]):
        assert texts(ask(client, prompt)) == expected


def test_choices_are_ordered_by_prompt(client: OpenAI) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(40)]  # more than run at once
    alone = [texts(ask(client, prompt))[0] for prompt in prompts[:3]]
    together = ask(client, prompts)
    assert texts(together)[:3] == alone and len(together.choices) == 40
    twice = ask(client, prompts[:3], n=2, temperature=1.0, seed=3)
    assert len(twice.choices) == 6
    for number, prompt in enumerate(prompts[:3]):
        own = ask(client, prompt, n=2, temperature=1.0, seed=3)
        assert texts(twice)[2 * number : 2 * number + 2] == texts(own)
    assert together.usage is not None and together.usage.completion_tokens == 40 * 12


def test_the_default_is_sixteen_tokens(client: OpenAI) -> None:
    answer = ask(client, max_tokens=openai.omit)
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_a_stop_ends_a_text(client: OpenAI) -> None:
    whole = texts(ask(client))[0]
    stop = whole[4:6]
    answer = ask(client, stop=stop)
    assert answer.choices[0].finish_reason == "stop"
    assert texts(answer) == [whole[: whole.index(stop)]]


# -- streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 1.0, "seed": 7}, {"echo": True}])
@pytest.mark.parametrize("prompt", [PROMPT, [PROMPT, "Two", "Three of them"]])
def test_a_stream_adds_up_to_the_whole(
    lenient: OpenAI, prompt: Any, fields: dict[str, Any]
) -> None:
    whole = ask(lenient, prompt, logprobs=2, **fields)
    chunks = ask_streaming(
        lenient, prompt, logprobs=2, stream_options={"include_usage": True}, **fields
    )
    assert {(c.id, c.object, c.created) for c in chunks} == {
        (chunks[0].id, "text_completion", chunks[0].created)
    }
    assert chunks[-1].choices == [] and chunks[-1].usage and whole.usage
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for expected in whole.choices:
        own = [c for chunk in chunks for c in chunk.choices if c.index == expected.index]
        assert "".join(choice.text for choice in own) == expected.text
        ends = [choice.finish_reason for choice in own if choice.finish_reason]
        assert ends == [expected.finish_reason]
        assert expected.logprobs is not None
        logs = [choice.logprobs for choice in own if choice.logprobs]
        for name in ("tokens", "text_offset"):
            joined = [item for log in logs for item in getattr(log, name) or []]
            assert joined == getattr(expected.logprobs, name), name
        values = [value for log in logs for value in log.token_logprobs or [] if value is not None]
        wanted = [v for v in expected.logprobs.token_logprobs or [] if v is not None]
        assert values == pytest.approx(wanted, abs=1e-4)  # in another batch, other rounding


def test_a_stream_that_is_left_leaves_the_batch(lenient: OpenAI, tiny: ServerProcess) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(30)]
    stream = lenient.completions.create(
        model=MODEL, prompt=prompts, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_idle_soon(tiny)


# -- log-probabilities -------------------------------------------------------------------


def test_echo_scores_the_prompt_as_the_model_itself_does(
    lenient: OpenAI, tokenizer: Tokenizer, tiny_models: Any
) -> None:
    """What lm-eval does: echo, no or one new token, integer logprobs."""
    tokens = tokenizer.encode(PROMPT)
    model = load(tiny_models / "org" / "tiny").model
    logits = model(mx.array([tokens]), cache=make_prompt_cache(model))[0]
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for count in (0, 1):
        answer = ask(lenient, tokens, echo=True, max_tokens=count, logprobs=1)
        log = answer.choices[0].logprobs
        assert log is not None and log.tokens and log.token_logprobs and log.top_logprobs
        assert len(log.tokens) == len(tokens) + count
        assert "".join(log.tokens) == answer.choices[0].text
        assert answer.choices[0].text.startswith(PROMPT)
        firsts: list[Any] = [log.token_logprobs[0], log.top_logprobs[0]]
        assert firsts == [None, None]
        for place, token in enumerate(tokens[1:]):
            row = expected[place]
            assert log.token_logprobs[place + 1] == pytest.approx(plain(row[token]), abs=1e-3)
            best = max(log.top_logprobs[place + 1].values())
            assert best == pytest.approx(plain(row.max()), abs=1e-3)
        assert answer.usage is not None and answer.usage.completion_tokens == count
        assert answer.choices[0].finish_reason == "length"


def test_offsets_count_the_characters_before_a_token(lenient: OpenAI) -> None:
    prompt = "Ein schöner Tag 日本 \U0001f600 end"
    answer = ask(lenient, prompt, echo=True, logprobs=0, max_tokens=4)
    choice = answer.choices[0]
    log = choice.logprobs
    assert log is not None and log.tokens and log.text_offset
    assert choice.text.startswith(prompt)
    assert log.text_offset == sorted(log.text_offset) and log.text_offset[0] == 0
    for token, offset in zip(log.tokens, log.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset : offset + len(token)] == token


def test_echo_alone_repeats_the_prompt(client: OpenAI, tokenizer: Tokenizer) -> None:
    after = texts(ask(client))[0]
    assert texts(ask(client, echo=True)) == [PROMPT + after]
    assert texts(ask(client, tokenizer.encode(PROMPT), echo=True)) == [PROMPT + after]
    assert texts(ask(client, [PROMPT, "b"], echo=True, max_tokens=0)) == [PROMPT, "b"]


def test_the_chosen_token_is_among_the_likeliest(client: OpenAI) -> None:
    log = ask(client, logprobs=3).choices[0].logprobs
    assert log is not None and log.tokens and log.token_logprobs and log.top_logprobs
    for token, value, top in zip(log.tokens, log.token_logprobs, log.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())  # greedy
        assert 1 <= len(top) <= 4


def test_best_of_gives_the_likeliest(client: OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 1.5, "seed": 5, "logprobs": 0}
    five = ask(client, n=5, **fields)
    best = ask(client, best_of=5, n=2, **fields)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return float(sum(values) / len(values))

    ranked = sorted(five.choices, key=mean, reverse=True)
    assert texts(best) == [choice.text for choice in ranked[:2]]
    assert best.usage is not None and best.usage.completion_tokens == 5 * 12
    silent = ask(client, best_of=5, n=2, temperature=1.5, seed=5)
    assert texts(silent) == texts(best) and silent.choices[0].logprobs is None


# -- what is wrong -----------------------------------------------------------------------


def test_minus_one_is_all_that_the_context_has_room_for(client: OpenAI) -> None:
    extra = {"ignore_eos": True, "structured_outputs": {"regex": "[ab]{40}"}}
    answer = ask(client, PROMPT, max_tokens=-1, extra_body=extra)
    assert len(answer.choices[0].text) == 40


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1 << 20]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"suffix": "after"}, "suffix"),
        ({"stream_options": {}}, "stream_options"),
        ({"prompt": "x" * 100_000}, None),
        ({"prompt": [5] * 5_000}, None),
        ({"prompt": "a" * 1_100_000}, None),
    ],
)
def test_what_is_wrong_is_said(tiny: ServerProcess, fields: dict[str, Any], param: str) -> None:
    body = {"model": tiny.model, "prompt": "a", "max_tokens": 3, **fields}
    response = httpx.post(f"{tiny.url}/v1/completions", json=body, trust_env=False)
    assert response.status_code == 400
    assert_envelope(response, 400)
    if param:
        assert str(response.json()["error"]["param"]).startswith(param)
    else:
        assert "maximum context length" in response.json()["error"]["message"]
