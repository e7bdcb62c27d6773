"""Converts Ollama's requests into chat and completion requests. Pure.

Most clients drop the ids of calls. A call without one gets an id by its place in the conversation,
so the next request has the same prompt.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import EngineFields, TokenFields
from omlx_server.api.http.json_body import refuse_unsupported, validate_fields
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.ollama.request import (
    Format,
    GenerateRequest,
    GivenCall,
    GivenMessage,
    OllamaChatRequest,
    Options,
    WrittenRequest,
)
from omlx_server.api.openai.completion_prompts import CompletionRequest
from omlx_server.errors import BadRequest
from omlx_server.images.source import url_of_image_block
from omlx_server.text.reasoning.effort import switches

Fields = dict[str, Any]
Waiting = list[tuple[str, str]]
"""The ids and names of calls that have no result yet, the oldest first."""

_NO_TEMPLATE = "a template in a request is refused; the model's own is used"
_NO_CONTEXT = "this server keeps no context; send the conversation to /api/chat"
_UNSUPPORTED = {"template": _NO_TEMPLATE, "context": _NO_CONTEXT}
_NO_LIMIT_TOKENS = 1 << 31
OPTION_NAMES = {"repetition_penalty": "repeat_penalty"}
"""Ollama's own names of sampling parameters."""


def of_chat(body: OllamaChatRequest, model: ServedModel) -> ChatRequest:
    """Return the chat request. A final message of the assistant begins the answer. Raises
    BadRequest."""
    turns = body.messages or []
    tools = [
        {"type": "function", "function": tool.function.model_dump(exclude_unset=True)}
        for tool in body.tools or ()
    ]
    fields: Fields = {"messages": chat_messages(turns), "tools": tools or None}
    if turns and turns[-1].role == "assistant" and not turns[-1].tool_calls:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return validate_fields(ChatRequest, {**fields, **_chat_fields(body, model)})


def of_prompt(body: GenerateRequest, model: ServedModel) -> ChatRequest:
    """Return the chat request for a prompt, as a message of the user. Raises BadRequest."""
    refuse_unsupported(body, _UNSUPPORTED)
    content = content_of(body.prompt or "", body.images or (), "images")
    turns: list[Fields] = [{"role": "system", "content": body.system}] if body.system else []
    turns.append({"role": "user", "content": content})
    return validate_fields(ChatRequest, {"messages": turns, **_chat_fields(body, model)})


def of_text(body: GenerateRequest, model: ServedModel) -> CompletionRequest:
    """Return the completion request for a prompt without a chat template. Raises BadRequest."""
    refuse_unsupported(body, _UNSUPPORTED)
    for name in ("system", "images", "think"):
        if getattr(body, name):
            raise BadRequest(f"{name} can't be used with raw or suffix", param=name)
    fields = {
        "prompt": body.prompt,
        "suffix": body.suffix,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        **_shared_fields(body),
    }
    most = model.defaults.max_tokens or _NO_LIMIT_TOKENS
    return validate_fields(CompletionRequest, {"max_tokens": most, **fields})


def _chat_fields(body: WrittenRequest, model: ServedModel) -> Fields:
    overflow = {None: None, True: "truncate", False: "error"}[body.truncate]
    logs = {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    return {**_shared_fields(body), **_thinking(body, model), **logs, "context_overflow": overflow}


def _shared_fields(body: WrittenRequest) -> Fields:
    engine = body.model_dump(include=set(EngineFields.model_fields))
    options = _sampling(body.options) if body.options is not None else {}
    return {**engine, **options, "response_format": _response_format(body.format)}


def _sampling(options: Options) -> Fields:
    fields = options.model_dump(include={*TokenFields.model_fields, "stop"})
    if options.seed is not None and options.seed < 0:  # any seed
        del fields["seed"]
    if options.num_predict is not None and options.num_predict > 0:
        fields["max_tokens"] = options.num_predict
    if options.repeat_last_n != 0:
        fields["repetition_penalty"] = options.repeat_penalty
        fields["presence_penalty"] = options.presence_penalty
        fields["frequency_penalty"] = options.frequency_penalty
    return fields


def _response_format(form: Format | None) -> Fields | None:
    if not form and not isinstance(form, dict):
        return None
    if isinstance(form, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}


def _thinking(body: WrittenRequest, model: ServedModel) -> Fields:
    """Return the fields for `think`; without it the template decides. Raises BadRequest if the
    model can't think."""
    think = body.think
    if think is None:
        return {}
    if think is False:
        return {"reasoning_effort": "none"}
    if model.dialect.style is None:
        raise BadRequest(f"{body.model[:200]!r} does not support thinking", param="think")
    if think is True:
        return {"chat_template_kwargs": switches(model.template.variables, on=True)}
    return {"reasoning_effort": think}


def chat_messages(messages: Sequence[GivenMessage]) -> list[Fields]:
    """Return the chat's messages. Raises BadRequest for an image that is not base64."""
    shapes: list[Fields] = []
    waiting: Waiting = []
    calls = 0
    for index, message in enumerate(messages):
        shape = _message(message, f"messages.{index}")
        if message.role == "tool":
            shape |= _call_of_result(message, waiting)
        elif message.tool_calls:
            shape["tool_calls"] = [
                _call(one, calls + n) for n, one in enumerate(message.tool_calls)
            ]
            waiting += [(one["id"], one["function"]["name"]) for one in shape["tool_calls"]]
            calls += len(message.tool_calls)
        shapes.append(shape)
    return shapes


def content_of(text: str, images: Iterable[str], param: str) -> str | list[Fields]:
    """Return the text, or images and then the text. Raises as `chat_messages`."""
    parts = [_image(data, f"{param}.images.{index}") for index, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if parts else text


def image_chars(messages: Iterable[GivenMessage]) -> int:
    return sum(len(data) for message in messages for data in message.images or ())


def _message(message: GivenMessage, param: str) -> Fields:
    content = content_of(message.content or "", message.images or (), param)
    shape: Fields = {"role": message.role, "content": content}
    if message.thinking:
        shape["reasoning_content"] = message.thinking
    return shape


def _call_of_result(message: GivenMessage, waiting: Waiting) -> Fields:
    """Return the fields that link a result to its call, and remove that call from `waiting`."""
    by_name = [call for call in waiting if call[1] == message.tool_name] or waiting
    by_id = [call for call in waiting if call[0] == message.tool_call_id]
    call = next(iter(by_id or by_name), (message.tool_call_id or _id_of(0), ""))
    if call in waiting:
        waiting.remove(call)
    name = message.tool_name or call[1]
    shape = {"tool_call_id": message.tool_call_id or call[0]}
    return {**shape, "name": name} if name else shape


def _call(call: GivenCall, number: int) -> Fields:
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or _id_of(number), "type": "function", "function": function}


def _id_of(number: int) -> str:
    """Return nine letters and digits: Mistral's templates take no other ids."""
    return f"call{number:05d}"


def _image(data: str, param: str) -> Fields:
    if data.startswith("data:"):
        raise BadRequest("images must be base64, without data: before it", param=param)
    source = {"type": "base64", "data": data}
    url = url_of_image_block({"source": source}, param=param)
    return {"type": "image_url", "image_url": url}
