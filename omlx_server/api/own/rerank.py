"""POST /v1/rerank: ranks documents by a query, for clients of Jina, Cohere and vLLM.

A pair of query and document that is too long is cut at its end.
"""

import uuid
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.context import body_of, context_of, in_time
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http.exchange import current_exchange
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel, Text
from omlx_server.api.own.answers import Ranked, Ranking

router = APIRouter()

_MAX_DOCUMENTS = 2048


class Document(StrictModel):
    text: Text


class RerankRequest(StrictModel):
    """The body of POST /v1/rerank."""

    model: str | None = None
    query: Annotated[Text, Field(min_length=1)]
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=_MAX_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    return_documents: bool | None = None

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


_RERANK = Operation("Reading", Ranking, body=RerankRequest, may_fail=MODEL + WORK).extra


@router.post("/v1/rerank", openapi_extra=_RERANK)
@router.post("/v2/rerank", openapi_extra=_RERANK)
@router.post("/rerank", openapi_extra=_RERANK)
async def rerank(request: Request) -> Response:
    """Return the documents' relevance, the highest first."""
    context = context_of(request)
    body = await body_of(request, RerankRequest)
    model = await context.models.reranker(body.model)
    size = len(body.query) * len(body.documents)  # the query may be encoded with each document
    encode, max_tokens = model.encoder.encode_pairs, model.scores.max_tokens
    encoding = context.threads.run(encode, body.query, body.texts, max_tokens, size=size)
    inputs = await in_time(request, encoding)
    tokens = current_exchange().encoded = sum(map(len, inputs))
    scores = await in_time(request, model.scores.score(inputs))
    context.metrics.of(model.names[0]).prompt_tokens.inc(tokens)
    ranking: Ranking = {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": body.model or model.names[0],
        "results": _ranked_results(body, scores),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"tokens": {"input_tokens": tokens}},
    }
    return JsonResponse(ranking)


def _ranked_results(body: RerankRequest, scores: list[float]) -> list[Ranked]:
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results: list[Ranked] = [{"index": index, "relevance_score": scores[index]} for index in best]
    if body.return_documents:
        texts = body.texts
        for ranked in results:
            ranked["document"] = {"text": texts[ranked["index"]]}
    return results
