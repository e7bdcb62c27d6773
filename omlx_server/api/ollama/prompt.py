"""From Ollama's requests to the chat and completion requests that ask for the same. Pure."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.sampling import EngineFields, TokenFields
from omlx_server.api.http.errors import from_validation
from omlx_server.api.http.json_body import refuse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.ollama import messages
from omlx_server.api.ollama.request import (
    Format,
    GenerateRequest,
    OllamaChatRequest,
    Options,
    WrittenRequest,
)
from omlx_server.api.openai.completion_schema import CompletionRequest
from omlx_server.errors import BadRequest
from omlx_server.text.reasoning.effort import switches

Fields = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

_NO_TEMPLATE = "a template in a request is refused; the model's own is used"
_NO_CONTEXT = "this server keeps no context; send the conversation to /api/chat"
_UNSUPPORTED = {"template": _NO_TEMPLATE, "context": _NO_CONTEXT}
_NO_LIMIT_TOKENS = 1 << 31
OPTION_NAMES = {"repetition_penalty": "repeat_penalty"}
"""What Ollama calls a sampling parameter otherwise, where a model is shown."""


def of_chat(asked: OllamaChatRequest, model: ServedModel) -> ChatRequest:
    """The chat request that asks for the same. A final message of the assistant is the beginning of
    the answer. Raises BadRequest."""
    given = asked.messages or []
    tools = [
        {"type": "function", "function": tool.function.model_dump(exclude_unset=True)}
        for tool in asked.tools or ()
    ]
    fields: Fields = {"messages": messages.chat_messages(given), "tools": tools or None}
    if given and given[-1].role == "assistant" and not given[-1].tool_calls:
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return _validated(ChatRequest, {**fields, **_of_chats(asked, model)})


def of_prompt(asked: GenerateRequest, model: ServedModel) -> ChatRequest:
    """The chat request for a prompt that is a message of the user. Raises BadRequest."""
    refuse(asked, _UNSUPPORTED)
    content = messages.content_of(asked.prompt or "", asked.images or (), "images")
    given: list[Fields] = [{"role": "system", "content": asked.system}] if asked.system else []
    given.append({"role": "user", "content": content})
    return _validated(ChatRequest, {"messages": given, **_of_chats(asked, model)})


def of_text(asked: GenerateRequest, model: ServedModel) -> CompletionRequest:
    """The completion request for a prompt without a chat template. Raises BadRequest."""
    refuse(asked, _UNSUPPORTED)
    for name in ("system", "images", "think"):
        if getattr(asked, name):
            raise BadRequest(f"{name} can't be used with raw or suffix", param=name)
    fields = {
        "prompt": asked.prompt,
        "suffix": asked.suffix,
        "logprobs": (asked.top_logprobs or 0) if asked.logprobs else None,
        **_shared(asked),
    }
    most = model.defaults.max_tokens or _NO_LIMIT_TOKENS
    return _validated(CompletionRequest, {"max_tokens": most, **_given(fields)})


def _of_chats(asked: WrittenRequest, model: ServedModel) -> Fields:
    overflow = {None: None, True: "truncate", False: "error"}[asked.truncate]
    logs = {"logprobs": asked.logprobs, "top_logprobs": asked.top_logprobs}
    return {**_shared(asked), **_thinking(asked, model), **logs, "context_overflow": overflow}


def _shared(asked: WrittenRequest) -> Fields:
    """The fields that chats and completions have alike. Values that are None ask for nothing."""
    engine = asked.model_dump(include=set(EngineFields.model_fields))
    options = _sampling(asked.options) if asked.options is not None else {}
    return {**engine, **options, "response_format": _response_format(asked.format)}


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


def _response_format(wanted: Format | None) -> Fields | None:
    if not wanted and not isinstance(wanted, dict):
        return None
    if isinstance(wanted, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted}}


def _thinking(asked: WrittenRequest, model: ServedModel) -> Fields:
    """The fields that switch thinking on or off. Without `think` the chat template decides. Raises
    BadRequest where a model without thoughts is to think."""
    think = asked.think
    if think is None:
        return {}
    if think is False:
        return {"reasoning_effort": "none"}
    if model.dialect.style is None:
        raise BadRequest(f"{asked.model[:200]!r} does not support thinking", param="think")
    if think is True:
        return {"chat_template_kwargs": switches(model.template.variables, on=True)}
    return {"reasoning_effort": think}


def _given(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


def _validated(kind: type[M], fields: Fields) -> M:
    try:
        return kind.model_validate(_given(fields))
    except ValidationError as error:
        raise from_validation(error, frozenset(kind.model_fields)) from None
