"""POST /v1/embeddings: vectors of texts. Each request is one job of the mlx thread, which does it
in slices between the steps of chat models."""

import asyncio
import base64
import logging
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.context import context_of, in_time
from omlx_server.api.description.operation import MODEL, WORK, Operation, ResponseHeader
from omlx_server.api.http import json_body
from omlx_server.api.http.exchange import current
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.models.encoders import ServedEmbedder
from omlx_server.api.openai.answers import Embedding, EmbeddingList
from omlx_server.api.openai.completion_schema import Prompt, prompts_in
from omlx_server.core.encoded import TokenizedText
from omlx_server.errors import BadRequest, PromptTooLong, TooManyTokens

router = APIRouter()
_log = logging.getLogger(__name__)

Vectors = np.ndarray[Any, np.dtype[np.float32]]


class EmbeddingRequest(StrictModel):
    """The body of POST /v1/embeddings. Token ids are taken as they are, nothing is added to them.

    `truncate_prompt_tokens` (vLLM): of longer inputs the end is left out; -1 stands for what the
    model reads.
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
    """A vector for each input, in their order."""
    context = context_of(request)
    asked = await json_body.read(request, EmbeddingRequest, context.max_body_bytes)
    model = await context.models.embedder(asked.model)
    vectors, tokens = await embedded(request, asked, model)
    ids = [one for one in prompts_in(asked.input) if not isinstance(one, str)]
    foreign = await in_time(request, context.threads.run(_foreign, ids, model)) if ids else 0
    name = asked.model or model.names[0]
    content = await asyncio.to_thread(_content, name, asked.encoding_format, vectors, tokens)
    return JsonResponse(content, headers={_FOREIGN.name: str(foreign)} if foreign else {})


async def embedded(
    request: Request, asked: EmbeddingRequest, model: ServedEmbedder
) -> tuple[Vectors, int]:
    """The vectors of the inputs of `asked`, one a row, and how many tokens these have. Raises what
    `encode` raises, and what `while_connected` and the engine raise."""
    context = context_of(request)
    inputs = await in_time(request, context.threads.run(encode, asked, model))
    tokens = current().encoded = sum(map(len, inputs))
    vectors = await in_time(request, model.embeddings.embed(inputs, asked.dimensions))
    context.metrics.of(model.names[0]).prompt_tokens.inc(tokens)
    return vectors, tokens


def encode(asked: EmbeddingRequest, model: ServedEmbedder) -> list[TokenizedText]:
    """The inputs of a request as token ids. Slow for many inputs: call it in a worker thread.

    Raises:
        BadRequest: an input is empty, or holds ids that are no tokens of the model, or
            `truncate_prompt_tokens` is 0 or leaves no room for a text.
        PromptTooLong: an input is longer than the model can read.
    """
    limits, cut = model.embeddings.limits, asked.truncate_prompt_tokens
    if cut == 0:
        raise BadRequest("must be -1, or 1 and more", param="truncate_prompt_tokens")
    limit = None if cut is None else min(limits.max_tokens, limits.max_tokens if cut < 0 else cut)
    inputs = []
    for index, one in enumerate(prompts_in(asked.input)):
        try:
            inputs.append(_encode_one(index, one, model, limit))
        except TooManyTokens as error:
            raise _too_long(index, error.at_least, limits.max_tokens) from None
        if len(inputs[-1]) > limits.max_tokens:
            raise _too_long(index, len(inputs[-1]), limits.max_tokens)
    limits.check(inputs, "input")
    return inputs


def _foreign(given: Sequence[list[int]], model: ServedEmbedder) -> int:
    """How many of the inputs, as token ids, the model's own tokenizer would hardly write."""
    foreign = sum(not model.encoder.is_own(ids) for ids in given)
    if foreign:
        _log.warning(
            "%d of %d inputs are token ids that are probably not those of %s: send texts",
            foreign,
            len(given),
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


def _encode_one(
    index: int, given: str | list[int], model: ServedEmbedder, limit: int | None
) -> TokenizedText:
    if not isinstance(given, str):
        return TokenizedText(tuple(given[:limit]))
    if not given:
        raise BadRequest(f"input {index} is empty", param="input")
    if limit is None:
        return model.encoder.encode_whole(given, model.embeddings.limits.max_tokens)
    encoded = model.encoder.encode(given, limit)
    if len(encoded) > limit:
        raise BadRequest(
            f"the model's own tokens around a text are {len(encoded)} already",
            param="truncate_prompt_tokens",
        )
    return encoded


def _content(name: str, encoding: str, vectors: Vectors, tokens: int) -> EmbeddingList:
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
    """A vector as base64 of little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def as_numbers(vector: Vectors) -> orjson.Fragment:
    """A vector as JSON numbers, each with the fewest digits that give the same float32."""
    contiguous = np.ascontiguousarray(vector)
    return orjson.Fragment(orjson.dumps(contiguous, option=orjson.OPT_SERIALIZE_NUMPY))
