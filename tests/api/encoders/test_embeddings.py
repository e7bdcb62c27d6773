"""POST /v1/embeddings of a real server with all-MiniLM-L6-v2, against recorded vectors."""

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from openai import OpenAI

from omlx_server.api.http.exchange import REQUEST_ID
from omlx_server.models.installed import installed_models
from omlx_server.settings import Settings
from tests.api.encoders.conftest import Post
from tests.api.harness import CHAT, MARKER, Json, ServerProcess, assert_envelope, text_of
from tests.api.log_lines import lines_of

PATH = "/v1/embeddings"
NAME = "all-MiniLM-L6-v2"
RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "embed" / "minilm.json").read_text(encoding="utf-8")
)
# But the empty text, which is refused.
ROWS = [index for index, text in enumerate(RECORDED["texts"]) if text]
TEXTS = [RECORDED["texts"][index] for index in ROWS]
TOKENS = [RECORDED["tokens"][index] for index in ROWS]
LONGEST = len(TOKENS[-1])  # what the model reads; the last text is longer


def vectors_of(response: httpx.Response) -> NDArray[np.float64]:
    assert response.status_code == 200, response.text
    body = response.json()
    assert [row["index"] for row in body["data"]] == list(range(len(body["data"])))
    return np.array([row["embedding"] for row in body["data"]])


def embed(post: Post, given: Any, **fields: Any) -> NDArray[np.float64]:
    return vectors_of(post(PATH, model=NAME, input=given, **fields))


def assert_recorded(vectors: NDArray[Any], rows: Sequence[int]) -> None:
    heads = np.array(RECORDED["heads"])[list(rows)]
    products = np.array(RECORDED["products"])[np.ix_(rows, rows)]
    assert vectors.shape == (len(rows), 384)
    assert np.abs(vectors[:, :16] - heads).max() < 1e-5
    assert np.abs(vectors @ vectors.T - products).max() < 1e-5


def test_the_recorded_vectors(post: Post) -> None:
    response = post(PATH, model=NAME, input=TEXTS, truncate_prompt_tokens=-1, user="somebody")
    assert_recorded(vectors_of(response), ROWS)
    body = response.json()
    count = sum(map(len, TOKENS))
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (body["object"], body["model"]) == ("list", NAME)
    assert set(body) == {"object", "model", "usage", "data"}
    assert all(set(row) == {"object", "index", "embedding"} for row in body["data"])


def test_order_is_kept_and_a_batch_equals_its_parts(post: Post) -> None:
    turned = TEXTS[-2::-1]
    batch = embed(post, turned)
    assert_recorded(batch, ROWS[-2::-1])
    for text, vector in zip(turned, batch, strict=True):
        assert np.abs(embed(post, text) - vector).max() < 1e-6


def test_token_ids_are_taken_as_they_are(post: Post) -> None:
    assert_recorded(embed(post, TOKENS), ROWS)
    assert_recorded(embed(post, TOKENS[0]), ROWS[:1])
    longer = [*TOKENS[-1], 5, 6, 7]
    assert_recorded(embed(post, longer, truncate_prompt_tokens=LONGEST), ROWS[-1:])


def test_ids_of_another_tokenizer_are_told(post: Post, reading: ServerProcess) -> None:
    """LangChain sends those of OpenAI's: here the codes of "A cat sits on the mat." in cl100k."""
    others = [32, 8415, 23874, 389, 279, 5634, 13]
    response = post(PATH, model=NAME, input=[others, TOKENS[0]])
    assert response.status_code == 200
    assert response.headers["X-Omlx-Foreign-Tokens"] == "1"
    assert "1 of 2 inputs are token ids that are probably not those of" in reading.log
    for given in (TOKENS, TOKENS[0], TEXTS[0], TOKENS[0][1:-1]):
        assert "X-Omlx-Foreign-Tokens" not in post(PATH, model=NAME, input=given).headers


def test_base64_is_the_same_numbers_little_endian(post: Post) -> None:
    plain = embed(post, TEXTS[:2])
    coded = post(PATH, input=TEXTS[:2], encoding_format="base64").json()["data"]
    for row, vector in zip(coded, plain, strict=True):
        decoded = np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4")
        assert decoded.tolist() == np.float32(vector).tolist()


@pytest.mark.parametrize("strict", [False, True])
def test_the_official_package(reading: ServerProcess, strict: bool) -> None:
    """By default it asks for base64, which its own strict validation then takes for a fault."""
    given: dict[str, Any] = {"encoding_format": "float"} if strict else {}
    with OpenAI(
        base_url=f"{reading.url}/v1",
        api_key="x",
        max_retries=0,
        _strict_response_validation=strict,
    ) as client:
        batch = client.embeddings.create(model=NAME, input=TEXTS[:3], **given)
        short = client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=8, **given)
        names = [model.id for model in client.models.list().data]
    assert_recorded(np.array([row.embedding for row in batch.data]), ROWS[:3])
    assert len(short.data[0].embedding) == 8
    assert {"org/tiny", "tiny", NAME, "minilm", "ranker"} <= set(names)
    assert len(names) == len(set(names))


def test_fewer_dimensions_are_the_first_ones_made_a_unit(post: Post) -> None:
    whole = embed(post, TEXTS[:2])
    cut = embed(post, TEXTS[:2], dimensions=10)
    expected = whole[:, :10] / np.linalg.norm(whole[:, :10], axis=1, keepdims=True)
    assert np.abs(cut - expected).max() < 1e-6
    assert embed(post, TEXTS[0], dimensions=384).shape == (1, 384)


def test_a_cut_text_reads_as_its_beginning(post: Post) -> None:
    """Six tokens are [CLS], four of the text and [SEP]."""
    cut = embed(post, "hello hello hello hello hello hello", truncate_prompt_tokens=6)
    assert np.abs(cut - embed(post, "hello hello hello hello")).max() < 1e-6
    roomy = embed(post, TEXTS[0], truncate_prompt_tokens=1 << 20)
    assert_recorded(roomy, ROWS[:1])


def test_too_long_is_refused_as_a_prompt_is(post: Post) -> None:
    for given in (["fine", TEXTS[-1]], ["fine", "a" * 1_100_000], [[5], [5] * (LONGEST + 1)]):
        error = assert_envelope(post(PATH, model=NAME, input=given), 400)
        assert error["code"] == "context_length_exceeded"
        assert f"maximum context length is {LONGEST} tokens" in error["message"]
        assert "input 1" in error["message"]
    assert embed(post, [5] * LONGEST).shape == (1, 384)


def test_as_many_inputs_as_are_allowed(post: Post) -> None:
    assert embed(post, [[5]] * 2048, dimensions=2).shape == (2048, 2)
    assert_envelope(post(PATH, model=NAME, input=[[5]] * 2049), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, None),
        ({"input": ["a", 5]}, None),
        ({"input": [True]}, None),
        ({"input": {"text": MARKER}}, "input"),
        ({"input": [30_522]}, "input"),
        ({"input": [[5], [1 << 40]]}, None),
        ({"input": [-1]}, None),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 385}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "encoding_format": "ubyte"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_wrong_is_said(post: Post, fields: dict[str, Any], param: str | None) -> None:
    error = assert_envelope(post(PATH, model=NAME, **fields), 400)
    assert param is None or error["param"] == param


def test_odd_texts_are_texts(post: Post) -> None:
    odd = ["\x00", " ", "[SEP]", "[CLS] a [SEP]", "🚀" * 50, "ß" * 200]
    assert np.isfinite(embed(post, odd)).all()


def test_each_model_says_what_it_is_for(post: Post, reading: ServerProcess) -> None:
    chat = assert_envelope(reading.post({**reading.body("Hi"), "model": NAME}), 400)
    assert "an embedding model" in chat["message"] and PATH in chat["message"]
    wrong = assert_envelope(post(PATH, model="org/tiny", input="a"), 400)
    assert "a chat model" in wrong["message"] and NAME in wrong["message"]
    assert "a reranker" in assert_envelope(post(PATH, model="ranker", input="a"), 400)["message"]
    unknown = assert_envelope(post(PATH, model="text-embedding-3-small", input="a"), 404)
    assert unknown["code"] == "model_not_found" and NAME in unknown["message"]
    assert chat["param"] == wrong["param"] == unknown["param"] == "model"


def test_models_lists_it_with_its_length(reading: ServerProcess) -> None:
    listed = reading.http.get(f"{reading.url}/v1/models").json()["data"]
    lengths = {row["id"]: row["max_model_len"] for row in listed}
    served = {"org/tiny": 4096, "tiny": 4096, NAME: 256, "minilm": 256, "ranker": 64}
    found = {"org/thinker": 4096, "thinker": 4096}  # in the same directory
    assert lengths.items() >= (served | found).items()
    assert listed[0]["id"] == "org/tiny"
    one = reading.http.get(f"{reading.url}/v1/models/{NAME}").json()
    assert one in listed
    modalities = {row["id"]: row["architecture"]["modality"] for row in listed}
    told = {"tiny": "text->text", NAME: "text->embeddings", "ranker": "text->rerank"}
    assert modalities.items() >= told.items()


def test_the_tokens_are_counted(post: Post, reading: ServerProcess) -> None:
    def counted() -> float:
        text = reading.http.get(f"{reading.url}/metrics").text
        line = f'vllm:prompt_tokens_total{{model_name="{NAME}"}} '
        return float(next(x for x in text.splitlines() if x.startswith(line)).split()[1])

    before = counted()
    embed(post, TOKENS[0])
    assert counted() - before == len(TOKENS[0])


def test_embeddings_are_answered_while_four_chats_stream(reading: ServerProcess) -> None:
    question = reading.body("Tell me a story.", max_tokens=1000, ignore_eos=True)
    alone = text_of(reading.post(question).json())

    async def scene() -> bool:
        """Whether all of them were at work before and after. That may fail on a busy machine."""
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            url = f"{reading.url}{CHAT}"
            chats = [asyncio.create_task(http.post(url, json=question)) for _ in range(4)]
            while reading.load()["running"] < 4 and not any(chat.done() for chat in chats):
                await asyncio.sleep(0.01)
            body = {"model": NAME, "input": TEXTS[:-1]}
            answer = await http.post(f"{reading.url}{PATH}", json=body)
            assert_recorded(vectors_of(answer), ROWS[:-1])
            at_work = not any(chat.done() for chat in chats)
            for chat in chats:
                assert text_of((await chat).json()) == alone
            return at_work

    assert any(asyncio.run(scene()) for _ in range(5))


def test_one_number_is_told_of_what_the_model_reads(reading: ServerProcess, post: Post) -> None:
    shown = reading.http.get(f"{reading.url}/v1/models/{NAME}").json()
    assert shown["max_model_len"] == shown["max_input_tokens"] == LONGEST
    refused = post(PATH, model=NAME, input=[[5] * (LONGEST + 1)])
    assert f"context length is {LONGEST} tokens" in refused.json()["error"]["message"]
    here = installed_models(Settings().models)
    assert [m.context_length for m in here if NAME in m.names] == [LONGEST]


def test_the_log_and_the_metrics_name_the_encoders(reading: ServerProcess, post: Post) -> None:
    asked: dict[str, Json] = {
        PATH: {"input": ["Hello", "you there"]},
        "/v1/rerank": {"query": "you", "documents": ["Hello", "there"]},
    }
    names = {PATH: NAME, "/v1/rerank": "ranker"}
    for path, body in asked.items():
        response = post(path, **body)
        line = lines_of(reading, response.headers[REQUEST_ID])[-1]
        assert (line["route"], line["model"], line["status"]) == (path, names[path], 200)
        assert line["prompt_tokens"] == response.json()["usage"]["prompt_tokens"]
        assert f"{names[path]}, {line['prompt_tokens']} tokens in" in line["message"]
    text = reading.http.get(f"{reading.url}/metrics").text
    kinds = {"org/tiny": "chat", names[PATH]: "embedding", "ranker": "rerank"}
    told = reading.http.get(f"{reading.url}/health").json()["loaded"]
    assert {one["model"]: one["kind"] for one in told} == kinds
    for name, kind in kinds.items():
        assert f'omlx_model_loaded{{kind="{kind}",model_name="{name}"}} 1.0' in text


def test_clients_that_leave_cost_the_others_nothing(reading: ServerProcess) -> None:
    """Thirty requests of 500 slices each would take minutes; after they left, one takes none."""
    content = json.dumps({"model": NAME, "input": [[5] * LONGEST] * 500}).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode()
    url = httpx.URL(reading.url)

    async def leave() -> None:
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(head + content)
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.transport.abort()

    async def scene() -> None:
        await asyncio.gather(*(leave() for _ in range(30)))
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            answer = await http.post(f"{reading.url}{PATH}", json={"input": TEXTS[0]})
        assert_recorded(vectors_of(answer), ROWS[:1])

    asyncio.run(scene())
