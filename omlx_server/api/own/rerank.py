"""POST /v1/rerank: ranks documents by how well they fit a query, for clients of Jina, Cohere and
vLLM.

A pair of query and document that is too long is cut at its end, as those servers do: one long
document among many should not make the whole request fail.
"""

import uuid
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.context import context_of, in_time
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http import json_body
from omlx_server.api.http.exchange import current
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.http.texts import Text
from omlx_server.api.own.answers import Ranked, Ranking

router = APIRouter()

_DOCUMENTS = 2048


class Document(StrictModel):
    text: Text


class RerankRequest(StrictModel):
    """The body of POST /v1/rerank."""

    model: str | None = None
    query: Annotated[Text, Field(min_length=1)]
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    return_documents: bool | None = None

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


_DESCRIBED = Operation("Reading", Ranking, body=RerankRequest, may_fail=MODEL + WORK).extra


@router.post("/v1/rerank", openapi_extra=_DESCRIBED)
@router.post("/v2/rerank", openapi_extra=_DESCRIBED)
@router.post("/rerank", openapi_extra=_DESCRIBED)
async def rerank(request: Request) -> Response:
    """The documents' relevance, the highest first."""
    context = context_of(request)
    asked = await json_body.read(request, RerankRequest, context.max_body_bytes)
    model = await context.models.reranker(asked.model)
    size = len(asked.query) * len(asked.documents)  # it may be encoded with each of them
    encode, limit = model.encoder.encode_pairs, model.scores.max_tokens
    encoding = context.threads.run(encode, asked.query, asked.texts, limit, size=size)
    inputs = await in_time(request, encoding)
    tokens = current().encoded = sum(map(len, inputs))
    scores = await in_time(request, model.scores.score(inputs))
    context.metrics.of(model.names[0]).prompt_tokens.inc(tokens)
    ranking: Ranking = {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": asked.model or model.names[0],
        "results": _results(asked, scores),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"tokens": {"input_tokens": tokens}},
    }
    return JsonResponse(ranking)


def _results(asked: RerankRequest, scores: list[float]) -> list[Ranked]:
    """The `top_n` best documents, the best first; of equal ones the first stays first."""
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    results: list[Ranked] = [{"index": index, "relevance_score": scores[index]} for index in best]
    if asked.return_documents:
        texts = asked.texts
        for ranked in results:
            ranked["document"] = {"text": texts[ranked["index"]]}
    return results
