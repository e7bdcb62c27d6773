"""POST /v1/rerank: which documents fit a query best, as clients of Jina, Cohere and vLLM ask.

Of a pair that is too long the end is left out, as those servers do: one long document among many
should not cost the whole ranking.
"""

import uuid
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.access import jobs
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, WORK, described
from omlx_server.api.http import body
from omlx_server.api.http.body import StrictModel
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.encoders import ServedReranker
from omlx_server.api.own.answers import Ranked, Ranking
from omlx_server.core.encoded import Encoded

router = APIRouter()

_DOCUMENTS = 2048


class Document(StrictModel):
    text: str


class RerankRequest(StrictModel):
    """The body of POST /v1/rerank."""

    model: str | None = None
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    return_documents: bool | None = None

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


_DESCRIBED = described("Reading", Ranking, body=RerankRequest, may_fail=MODEL + WORK)


@router.post("/v1/rerank", openapi_extra=_DESCRIBED)
@router.post("/v2/rerank", openapi_extra=_DESCRIBED)
@router.post("/rerank", openapi_extra=_DESCRIBED)
async def rerank(request: Request) -> Response:
    """The documents' relevance, the highest first."""
    context = context_of(request)
    asked = await body.read(request, RerankRequest, context.max_body_bytes)
    model = await context.models.reranker(asked.model)
    size = len(asked.query) * len(asked.documents)  # it may be encoded with each of them
    inputs = await context.threads.run(partial(encode, asked, model), size)
    scores = await jobs.result_for(request, model.scores.score(inputs))
    tokens = sum(map(len, inputs))
    context.metrics.of(model.names[0]).prompt_tokens.inc(tokens)
    ranking: Ranking = {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": asked.model or model.names[0],
        "results": _results(asked, scores),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"tokens": {"input_tokens": tokens}},
    }
    return JsonResponse(ranking)


def encode(asked: RerankRequest, model: ServedReranker) -> list[Encoded]:
    """A pair for each document. Slow for many: runs in a worker thread.

    Raises:
        BadRequest: the query is too long.
        Unavailable: the model is being loaded.
    """
    limit = model.scores.max_tokens
    return model.encoder.encode_pairs(asked.query, asked.texts, limit)


def _results(asked: RerankRequest, scores: list[float]) -> list[Ranked]:
    """Among equals the first one stays first."""
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    results: list[Ranked] = [{"index": index, "relevance_score": scores[index]} for index in best]
    if asked.return_documents:
        texts = asked.texts
        for ranked in results:
            ranked["document"] = {"text": texts[ranked["index"]]}
    return results
