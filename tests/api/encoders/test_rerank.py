"""POST /v1/rerank: a cross-encoder behind a real server, and judges of both kinds from within."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.model.loader import load
from omlx_server.errors import ModelUnavailable
from omlx_server.models.locate import Located
from omlx_server.models.progress import Silent
from omlx_server.settings import Settings
from omlx_server.settings.model_sections import ModelsSettings
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.ranking.yes_no import YesNoPrompt
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.wiring.encoders import FoundEncoders, find_encoders, refuse_to_chat
from tests.api.encoders.conftest import Post
from tests.api.encoders.inside import inside, play
from tests.api.encoders.models import JUDGE_TOKENS, PAIR_TOKENS
from tests.api.harness import MARKER, Json, ServerProcess, assert_envelope
from tests.compute.embed.loading import collect, load_cross_encoder

PATH = "/v1/rerank"
QUERY = "What is the weather in Paris?"
DOCUMENTS = [
    "Hello world",
    "the quick brown fox jumps over the lazy dog",
    "",
    "It is 21 degrees in Paris today.",
    "Hello world",
    "Paris " * 200,
]


def results_of(response: httpx.Response) -> list[Json]:
    assert response.status_code == 200, response.text
    rows: list[Json] = response.json()["results"]
    return rows


def scores_of(response: httpx.Response) -> list[float]:
    """In the order of the documents."""
    rows = sorted(results_of(response), key=lambda row: row["index"])
    return [row["relevance_score"] for row in rows]


@pytest.fixture(scope="module")
def expected(ranker: Located) -> list[float]:
    """Each pair by itself."""
    model, encoder = load_cross_encoder(ranker.path), InputEncoder.load(ranker.path)
    pairs = encoder.encode_pairs(QUERY, DOCUMENTS, PAIR_TOKENS)
    return [float(np.array(collect(model.score([pair]), 1)[0])) for pair in pairs]


@pytest.mark.parametrize("path", [PATH, "/v2/rerank", "/rerank"])
def test_scores_are_those_of_each_pair_the_highest_first(
    post: Post, expected: list[float], path: str
) -> None:
    response = post(path, model="ranker", query=QUERY, documents=DOCUMENTS)
    assert scores_of(response) == pytest.approx(expected, abs=1e-5)
    rows = results_of(response)
    values = [row["relevance_score"] for row in rows]
    assert values == sorted(values, reverse=True) and max(values) - min(values) > 0.05
    assert [row["index"] for row in rows] != sorted(row["index"] for row in rows)
    assert all(set(row) == {"index", "relevance_score"} for row in rows)


def test_the_rest_of_an_answer(post: Post, ranker: Located) -> None:
    body = post(PATH, query=QUERY, documents=DOCUMENTS).json()
    encoder = InputEncoder.load(ranker.path)
    count = sum(map(len, encoder.encode_pairs(QUERY, DOCUMENTS, PAIR_TOKENS)))
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert body["meta"] == {"tokens": {"input_tokens": count}}
    assert body["model"] == "ranker" and body["id"].startswith("rerank-")


def test_the_best_few_with_their_texts(post: Post) -> None:
    whole = results_of(post(PATH, query=QUERY, documents=DOCUMENTS))
    objects = [{"text": text, "title": "ignored"} for text in DOCUMENTS]
    best = results_of(post(PATH, query=QUERY, documents=objects, top_n=2, return_documents=True))
    assert [row["index"] for row in best] == [row["index"] for row in whole[:2]]
    assert [row["document"] for row in best] == [{"text": DOCUMENTS[row["index"]]} for row in best]
    many = results_of(post(PATH, query=QUERY, documents=DOCUMENTS, top_n=99))
    assert len(many) == len(DOCUMENTS)


def test_among_equals_the_first_stays_first(post: Post) -> None:
    rows = results_of(post(PATH, query=QUERY, documents=["same"] * 9))
    assert [row["index"] for row in rows] == list(range(9))


def test_a_document_too_long_is_read_from_its_beginning(post: Post) -> None:
    long = "Paris " * 500
    first, other = scores_of(post(PATH, query=QUERY, documents=[long, long + "fox jumps"]))
    assert first == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "q"}, "documents"),
        ({"query": "q", "documents": []}, "documents"),
        ({"query": "q", "documents": "a"}, "documents"),
        ({"query": "q", "documents": [5]}, None),
        ({"query": "q", "documents": [{"title": MARKER}]}, None),
        ({"query": "q", "documents": ["a"] * 2049}, "documents"),
        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "q", "documents": ["a"], "top_n": True}, "top_n"),
    ],
)
def test_what_is_wrong_is_said(post: Post, fields: dict[str, Any], param: str | None) -> None:
    error = assert_envelope(post(PATH, model="ranker", **fields), 400)
    assert param is None or error["param"] == param


def test_each_model_says_what_it_is_for(post: Post, reading: ServerProcess) -> None:
    def refusal(name: str, status: int) -> str:
        response = post(PATH, model=name, query="q", documents=["a"])
        return str(assert_envelope(response, status)["message"])

    assert "a chat model" in refusal("org/tiny", 400)
    assert "an embedding model" in refusal("minilm", 400)
    assert "ranker" in refusal("nobody", 404)
    chat = assert_envelope(reading.post({**reading.body("Hi"), "model": "ranker"}), 400)
    assert "a reranker" in chat["message"]


# -- a language model that judges ----------------------------------------------------------


def judged(judge: Located, documents: Sequence[str], limit: int = JUDGE_TOKENS) -> list[float]:
    """p(yes) / (p(yes) + p(no)) by one plain forward for each document."""
    model = load(judge.path).model
    prompt = YesNoPrompt.of(Tokenizer.load(judge.path))
    found = []
    for text in documents:
        logits = model(mx.array([prompt.encode(QUERY, text, limit)]))[0, -1]
        both = mx.softmax(mx.stack([logits[prompt.yes], logits[prompt.no]]).astype(mx.float32))
        found.append(float(np.array(both)[0]))
    return found


@pytest.mark.parametrize("shared", [False, True], ids=["beside a chat model", "the chat model"])
def test_a_language_model_answers_yes_or_no(
    tiny_chat: Located, judge: Located, shared: bool
) -> None:
    chat = judge if shared else tiny_chat
    documents = [*DOCUMENTS, "word " * JUDGE_TOKENS]

    async def scene() -> None:
        async with inside(chat, FoundEncoders(reranker=judge)) as place:
            await place.ready()
            body: Json = {"query": QUERY, "documents": documents}
            answer = await place.http.post(PATH, json=body)
            expected = judged(judge, documents)
            assert max(expected) - min(expected) > 0.05
            assert scores_of(answer) == pytest.approx(expected, abs=1e-4)
            body["query"] = "why " * JUDGE_TOKENS
            error = assert_envelope(await place.http.post(PATH, json=body), 400)
            assert error["param"] == "query"
            listed = (await place.http.get("/v1/models")).json()["data"]
            assert [row["id"] for row in listed] == list(dict.fromkeys([*chat.names, "judge"]))

    play(scene())


# -- what is found on the disk -------------------------------------------------------------


def found(embedding: str = "", reranker: str = "") -> FoundEncoders:
    models = ModelsSettings(embedding=embedding, reranker=reranker, use_hf_cache=False)
    return find_encoders(Settings(models=models), Silent())


def test_models_are_found_by_name_and_by_path(
    minilm: Located, ranker: Located, judge: Located
) -> None:
    assert found() == FoundEncoders()
    for name in (*minilm.names, str(minilm.path)):
        assert found(embedding=name).embedder in (minilm, Located(minilm.path, minilm.names[:1]))
    for model in (ranker, judge):
        assert found(reranker=str(model.path)).reranker == model


def test_a_model_for_something_else_is_refused_at_the_start(
    minilm: Located, ranker: Located, tiny_chat: Located, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnavailable, match=r"models\.embedding: it is a model for rerank"):
        found(embedding=str(ranker.path))
    with pytest.raises(ModelUnavailable, match=r"models\.reranker: it is a model for embedding"):
        found(reranker=str(minilm.path))
    with pytest.raises(ModelUnavailable, match="no model"):
        found(embedding="nobody")
    config = {"architectures": ["BertForSequenceClassification"], "num_labels": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelUnavailable, match="not known"):
        found(reranker=str(tmp_path))
    for model, flag in ((minilm, "--embedding-model"), (ranker, "--reranker")):
        with pytest.raises(ModelUnavailable) as error:
            refuse_to_chat(model)
        assert flag in error.value.hint
    refuse_to_chat(tiny_chat)
