"""POST /tokenize and /detokenize, in vLLM's form and in llama.cpp's.

vLLM        {"model", "prompt" | "messages", "return_token_strs"} -> {"tokens", "count", ...}
llama.cpp   {"content", "add_special", "with_pieces"}             -> {"tokens"}

A conversation must fit the model's context; a text may be longer, as clients split such texts.
"""

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from omlx_server.api.chat.images import image_turns, read_images
from omlx_server.api.chat.request import ChatRequest, Message, Tool
from omlx_server.api.chat.sampling import PresetName, TokenId
from omlx_server.api.chat.turn import encode_chat
from omlx_server.api.context import body_of, context_of, in_time
from omlx_server.api.description.operation import MODEL, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import JsonObject, StrictModel, Text
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.own.answers import Detokenized, Tokenized, TokenizedContent, TokenPiece
from omlx_server.errors import BadRequest, PromptTooLong

router = APIRouter()

_MAX_TOKENS = 1 << 20


class TokenizeRequest(StrictModel):
    """One of `prompt`, `messages` and `content`."""

    model: str | None = None
    preset: PresetName | None = None
    prompt: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)] | None = None
    content: Text | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    tools: Annotated[list[Tool], Field(max_length=1000)] | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(StrictModel):
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=_MAX_TOKENS)]


_TOKENIZE = Operation(
    "Tokens", Tokenized | TokenizedContent, body=TokenizeRequest, may_fail=MODEL
).extra
_DETOKENIZE = Operation("Tokens", Detokenized, body=DetokenizeRequest, may_fail=MODEL).extra


@router.post("/tokenize", openapi_extra=_TOKENIZE)
async def tokenize(request: Request) -> Response:
    """Return the token ids of a text or of a conversation."""
    context = context_of(request)
    body = await body_of(request, TokenizeRequest)
    model = await context.models.find(body.model, preset=body.preset)
    _require_one_input(body)
    if body.messages is not None:
        encoding = _encode_chat(body, body.messages, model, request)
    else:
        encoding = context.threads.run(_encode_text, body, model)
    tokens = await in_time(request, encoding)
    return await context.threads.run(_tokenize_response, body, tokens, model)


@router.post("/detokenize", openapi_extra=_DETOKENIZE)
async def detokenize(request: Request) -> Response:
    """Return the text of token ids, special ones included."""
    context = context_of(request)
    body = await body_of(request, DetokenizeRequest)
    model = await context.models.find(body.model)
    if any(token >= model.vocab for token in body.tokens):
        raise BadRequest(f"token ids must be below {model.vocab}", param="tokens")
    return await context.threads.run(_detokenize_response, body, model)


def _detokenize_response(body: DetokenizeRequest, model: ServedModel) -> Response:
    text = model.tokenizer.decode_all(body.tokens)
    return JsonResponse(Detokenized(prompt=text, content=text))


def _require_one_input(body: TokenizeRequest) -> None:
    fields = {"prompt": body.prompt, "messages": body.messages, "content": body.content}
    given = [name for name, value in fields.items() if value is not None]
    if not given:
        raise BadRequest("one of prompt, messages and content is needed", param="prompt")
    if len(given) > 1:
        names = " and ".join(given)
        raise BadRequest(f"{names} exclude each other: send one of them", param=given[1])


def _tokenize_response(body: TokenizeRequest, tokens: list[int], model: ServedModel) -> Response:
    tokenizer = model.tokenizer
    if body.content is not None:
        if not body.with_pieces:
            return JsonResponse(TokenizedContent(tokens=tokens))
        raw = tokenizer.token_bytes
        pieces = [TokenPiece(id=token, piece=_text_or_bytes(raw(token))) for token in tokens]
        return JsonResponse(TokenizedContent(tokens=pieces))
    strings = [tokenizer.token_text(token) for token in tokens] if body.return_token_strs else None
    answer: Tokenized = {
        "tokens": tokens,
        "count": len(tokens),
        "max_model_len": model.context_length,
        "token_strs": strings,
    }
    return JsonResponse(answer)


async def _encode_chat(
    body: TokenizeRequest, messages: list[Message], model: ServedModel, request: Request
) -> list[int]:
    """Return the prompt of a conversation; an image is a run of its placeholder."""
    chat = ChatRequest(
        model=body.model or "default",
        messages=messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    images = await read_images(chat, model, image_turns(request))
    tokens = (await encode_chat(chat, model, images, context_of(request))).tokens
    return images.marks.with_placeholders(tokens) if images else tokens


def _encode_text(body: TokenizeRequest, model: ServedModel) -> list[int]:
    # Special tokens are added by default in vLLM's form, but not in llama.cpp's.
    if body.prompt is not None:
        field, text, adds_special = "prompt", body.prompt, body.add_special_tokens is not False
    else:
        field, text, adds_special = "content", body.content or "", bool(body.add_special)
    try:
        if adds_special:
            return model.tokenizer.encode_prompt(text, _MAX_TOKENS)
        return model.tokenizer.encode(text, most=_MAX_TOKENS)
    except PromptTooLong as error:
        raise PromptTooLong(error.message, param=field) from None


def _text_or_bytes(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
