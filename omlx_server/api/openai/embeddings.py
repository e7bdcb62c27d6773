"""POST /v1/embeddings: vectors of texts, computed in slices between the steps of chat models."""

import asyncio
import base64
import logging
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.context import body_of, context_of, in_time
from omlx_server.api.description.operation import MODEL, WORK, Operation, ResponseHeader
from omlx_server.api.http.exchange import current_exchange
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.models.served_model import ServedEmbedder
from omlx_server.api.openai.answers import Embedding, EmbeddingList
from omlx_server.api.openai.completion_prompts import Prompt, prompts_in
from omlx_server.core.encoded import TokenizedText
from omlx_server.errors import BadRequest, PromptTooLong, TooManyTokens

router = APIRouter()
_log = logging.getLogger(__name__)

Vectors = np.ndarray[Any, np.dtype[np.float32]]


class EmbeddingRequest(StrictModel):
    """The body of POST /v1/embeddings. Token ids are taken unchanged.

    `truncate_prompt_tokens` (vLLM): cuts the end of longer inputs; -1 for the model's own limit.
    """

    model: str | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None


_FOREIGN = ResponseHeader(
    "X-Omlx-Foreign-Tokens",
    "So many inputs are token ids that are probably those of another tokenizer.",
)
_DESCRIBED = Operation(
    "Reading", EmbeddingList, body=EmbeddingRequest, may_fail=MODEL + WORK, headers=(_FOREIGN,)
).extra


@router.post("/v1/embeddings", openapi_extra=_DESCRIBED)
async def embeddings(request: Request) -> Response:
    """Return a vector for each input, in order."""
    context = context_of(request)
    body = await body_of(request, EmbeddingRequest)
    model = await context.models.embedder(body.model)
    vectors, tokens = await embed_inputs(request, body, model)
    foreign = 0
    if isinstance(body.input, list) and not isinstance(body.input[0], str):
        foreign = await in_time(request, context.threads.run(_count_foreign, body.input, model))
    name = body.model or model.names[0]
    content = await asyncio.to_thread(_embedding_list, name, body.encoding_format, vectors, tokens)
    return JsonResponse(content, headers={_FOREIGN.name: str(foreign)} if foreign else {})


async def embed_inputs(
    request: Request, body: EmbeddingRequest, model: ServedEmbedder
) -> tuple[Vectors, int]:
    """Return the inputs' vectors, one a row, and their tokens. Raises as `encode` and `in_time`."""
    context = context_of(request)
    inputs = await in_time(request, context.threads.run(encode, body, model))
    tokens = current_exchange().encoded = sum(map(len, inputs))
    vectors = await in_time(request, model.embeddings.embed(inputs, body.dimensions))
    context.metrics.of(model.names[0]).prompt_tokens.inc(tokens)
    return vectors, tokens


def encode(body: EmbeddingRequest, model: ServedEmbedder) -> list[TokenizedText]:
    """Return the inputs as token ids; slow. Raises PromptTooLong, and BadRequest for an empty
    input, unknown ids, or a `truncate_prompt_tokens` without room for a text."""
    limits, cut = model.embeddings.limits, body.truncate_prompt_tokens
    if cut == 0:
        raise BadRequest("must be -1, or 1 and more", param="truncate_prompt_tokens")
    limit = cut
    if cut is not None:
        limit = limits.max_tokens if cut < 0 else min(limits.max_tokens, cut)
    inputs = []
    for index, text_or_ids in enumerate(prompts_in(body.input)):
        try:
            inputs.append(_encode_input(index, text_or_ids, model, limit))
        except TooManyTokens as error:
            raise _too_long(index, error.at_least, limits.max_tokens) from None
        except PromptTooLong as error:
            raise PromptTooLong(
                f"This model's maximum context length is {limits.max_tokens} tokens. However, "
                f"input {index} can't be cut into pieces: {error.message}.",
                param="input",
            ) from None
        if len(inputs[-1]) > limits.max_tokens:
            raise _too_long(index, len(inputs[-1]), limits.max_tokens)
    limits.check(inputs, "input")
    return inputs


def _count_foreign(prompts: Prompt, model: ServedEmbedder) -> int:
    """Count inputs of ids that the model's own tokenizer would hardly write."""
    inputs = prompts_in(prompts)
    ids_of_inputs = [ids for ids in inputs if not isinstance(ids, str)]
    foreign = sum(not model.encoder.is_own(ids) for ids in ids_of_inputs)
    if foreign:
        _log.warning(
            "%d of %d inputs are token ids that are probably not those of %s: send texts",
            foreign,
            len(inputs),
            model.names[0],
        )
    return foreign


def _too_long(index: int, tokens: int, most: int) -> PromptTooLong:
    return PromptTooLong(
        f"This model's maximum context length is {most} tokens. However, input {index} has at "
        f"least {tokens} tokens. Please reduce its length, or ask for truncation with "
        "truncate_prompt_tokens: -1.",
        param="input",
    )


def _encode_input(
    index: int, text_or_ids: str | list[int], model: ServedEmbedder, limit: int | None
) -> TokenizedText:
    if not isinstance(text_or_ids, str):
        return TokenizedText(tuple(text_or_ids[:limit]))
    if not text_or_ids:
        raise BadRequest(f"input {index} is empty", param="input")
    if limit is None:
        return model.encoder.encode_whole(text_or_ids, model.embeddings.limits.max_tokens)
    encoded = model.encoder.encode(text_or_ids, limit)
    if len(encoded) > limit:
        raise BadRequest(
            f"the model's own tokens around a text are {len(encoded)} already",
            param="truncate_prompt_tokens",
        )
    return encoded


def _embedding_list(name: str, encoding: str, vectors: Vectors, tokens: int) -> EmbeddingList:
    shape = _base64 if encoding == "base64" else as_numbers
    data: list[Embedding] = [
        {"object": "embedding", "index": index, "embedding": shape(vector)}
        for index, vector in enumerate(vectors)
    ]
    return {
        "object": "list",
        "data": data,
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def as_numbers(vector: Vectors) -> orjson.Fragment:
    """Return JSON numbers, each with the fewest digits of the same float32."""
    contiguous = np.ascontiguousarray(vector)
    return orjson.Fragment(orjson.dumps(contiguous, option=orjson.OPT_SERIALIZE_NUMPY))
