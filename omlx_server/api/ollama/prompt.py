"""Converts Ollama's requests into chat and completion requests. Pure.

Most clients drop the ids of calls. A call without one gets an id by its place in the conversation,
so the next request has the same prompt.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import EngineFields, TokenFields
from omlx_server.api.http.json_body import refuse_unsupported, validate_fields
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.ollama import schema
from omlx_server.api.openai.completion_prompts import CompletionRequest
from omlx_server.errors import BadRequest
from omlx_server.images.source import url_of_image_block
from omlx_server.text.reasoning.style import switches

Fields = dict[str, Any]

_NO_TEMPLATE = "a template in a request is refused; the model's own is used"
_NO_CONTEXT = "this server keeps no context; send the conversation to /api/chat"
_UNSUPPORTED_FIELDS = {"template": _NO_TEMPLATE, "context": _NO_CONTEXT}
_NO_LIMIT_TOKENS = 1 << 31
OPTION_NAMES = {"repetition_penalty": "repeat_penalty"}
"""Ollama's own names of sampling parameters."""


class _OpenCall(NamedTuple):
    """A call without a result so far. `name` is its tool's."""

    id: str
    name: str


def chat_request(body: schema.OllamaChatRequest, model: ServedModel) -> ChatRequest:
    """Return the chat request. A final message of the assistant begins the answer."""
    turns = body.messages or []
    tools = [
        {"type": "function", "function": tool.function.model_dump(exclude_unset=True)}
        for tool in body.tools or ()
    ]
    fields: Fields = {"messages": chat_messages(turns), "tools": tools or None}
    if turns and turns[-1].role == "assistant" and not turns[-1].tool_calls:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return validate_fields(ChatRequest, {**fields, **_chat_fields(body, model)})


def chat_request_of_prompt(body: schema.GenerateRequest, model: ServedModel) -> ChatRequest:
    """Return the chat request for a prompt, as a message of the user. Raises BadRequest."""
    refuse_unsupported(body, _UNSUPPORTED_FIELDS)
    content = _content_of(body.prompt or "", body.images or (), "")
    turns: list[Fields] = [{"role": "system", "content": body.system}] if body.system else []
    turns.append({"role": "user", "content": content})
    return validate_fields(ChatRequest, {"messages": turns, **_chat_fields(body, model)})


def completion_request(body: schema.GenerateRequest, model: ServedModel) -> CompletionRequest:
    """Return the completion request for a prompt without a chat template. Raises BadRequest."""
    refuse_unsupported(body, _UNSUPPORTED_FIELDS)
    for name in ("system", "images", "think"):
        if getattr(body, name):
            raise BadRequest(f"{name} can't be used with raw or suffix", param=name)
    fields = {
        "max_tokens": model.defaults.max_tokens or _NO_LIMIT_TOKENS,
        "prompt": body.prompt,
        "suffix": body.suffix,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        **_shared_fields(body),
    }
    return validate_fields(CompletionRequest, fields)


def _chat_fields(body: schema.WrittenRequest, model: ServedModel) -> Fields:
    overflow = {None: None, True: "truncate", False: "error"}[body.truncate]
    logs = {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    fields = {**_shared_fields(body), **_thinking_fields(body, model), **logs}
    return {**fields, "context_overflow": overflow}


def _shared_fields(body: schema.WrittenRequest) -> Fields:
    engine_fields = body.model_dump(include=set(EngineFields.model_fields))
    options = _sampling_fields(body.options) if body.options is not None else {}
    return {**engine_fields, **options, "response_format": _response_format(body.format)}


def _sampling_fields(options: schema.Options) -> Fields:
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


def _response_format(form: schema.Format | None) -> Fields | None:
    if form is None or form == "":  # an empty schema is one
        return None
    if isinstance(form, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form}}


def _thinking_fields(body: schema.WrittenRequest, model: ServedModel) -> Fields:
    """Return the fields for `think`. Raises BadRequest if the model can't think."""
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


def chat_messages(messages: Sequence[schema.GivenMessage]) -> list[Fields]:
    """Return the chat's messages. Raises BadRequest for an image that is not base64."""
    chat: list[Fields] = []
    open_calls: list[_OpenCall] = []
    call_numbers = count()
    for index, message in enumerate(messages):
        fields = _chat_message(message, f"messages.{index}")
        if message.role == "tool":
            fields |= _link_to_call(message, open_calls)
        elif message.tool_calls:
            calls = [_chat_call(call, next(call_numbers)) for call in message.tool_calls]
            fields["tool_calls"] = calls
            open_calls += [_OpenCall(call["id"], call["function"]["name"]) for call in calls]
        chat.append(fields)
    return chat


def _content_of(text: str, images: Iterable[str], param: str) -> str | list[Fields]:
    """Return the text, or images and then the text. Raises as `chat_messages`."""
    parts = [_image_part(data, f"{param}images.{index}") for index, data in enumerate(images)]
    return [*parts, {"type": "text", "text": text}] if parts else text


def _chat_message(message: schema.GivenMessage, param: str) -> Fields:
    content = _content_of(message.content or "", message.images or (), f"{param}.")
    fields: Fields = {"role": message.role, "content": content}
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    return fields


def _link_to_call(result: schema.GivenMessage, open_calls: list[_OpenCall]) -> Fields:
    """Return the fields that link a result to its call, and remove that call from `open_calls`:
    the first of its id, else of its name, else the oldest."""
    by_id = [call for call in open_calls if call.id == result.tool_call_id]
    by_name = [call for call in open_calls if call.name == result.tool_name]
    matches = by_id or by_name or open_calls
    if matches:
        call = matches[0]
        open_calls.remove(call)
    else:
        call = _OpenCall(result.tool_call_id or _call_id(0), "")
    name = result.tool_name or call.name
    fields = {"tool_call_id": result.tool_call_id or call.id}
    return {**fields, "name": name} if name else fields


def _chat_call(call: schema.GivenCall, number: int) -> Fields:
    arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or _call_id(number), "type": "function", "function": function}


def _call_id(number: int) -> str:
    """Return nine letters and digits: Mistral's templates take no other ids."""
    return f"call{number:05d}"


def _image_part(data: str, param: str) -> Fields:
    if data.startswith("data:"):
        raise BadRequest("images must be base64, without data: before it", param=param)
    source = {"type": "base64", "data": data}
    url = url_of_image_block({"source": source}, param=param)
    return {"type": "image_url", "image_url": url}
