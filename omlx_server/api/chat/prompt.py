"""Turn a validated chat request into token ids."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from omlx_server.api.chat.fit_prompt import Fitted, Fitter
from omlx_server.api.chat.images import ChatImages, Place
from omlx_server.api.chat.plan import ChatPlan, plan_of, wanted_tokens
from omlx_server.api.chat.request import (
    UNSUPPORTED,
    ChatRequest,
    ChatToolCall,
    MadeCustomCall,
    Message,
)
from omlx_server.api.chat.shared_ends import shared_ends
from omlx_server.api.chat.tools import arguments_of
from omlx_server.api.http.json_body import refuse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.images import FIRST_ID, ImageSpan
from omlx_server.errors import BadRequest, ContextTooLong, PromptTooLong
from omlx_server.text.prompt import PromptRenderer
from omlx_server.text.reasoning import effort
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.templates.messages import neutral_message, without_empty_systems

_NO_MARKS: Mapping[Place, str] = MappingProxyType({})


def check_supported(chat: ChatRequest) -> None:
    """Raise BadRequest for fields that are not supported or contradict each other."""
    refuse(chat, UNSUPPORTED)
    if chat.modalities not in (None, [], ["text"]):
        raise BadRequest("this model makes text only", param="modalities")
    chat.check_stream_options()
    for name in ("max_completion_tokens", "max_tokens"):
        if getattr(chat, name) == 0:
            raise BadRequest("must be -1, or 1 and more", param=name)
    if chat.top_logprobs is not None and not chat.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")


@dataclass(frozen=True, slots=True, eq=False)
class ChatPrompt:
    """A prompt's token ids. Later prompts probably repeat it up to `checkpoints_at`; `opening` says
    whether the answer begins in a thought; `dropped` counts messages."""

    tokens: list[int]
    checkpoints_at: tuple[int, ...]
    plan: ChatPlan
    opening: Opening
    dropped: int = 0
    images: tuple[ImageSpan, ...] = ()


def size_of(chat: ChatRequest) -> int:
    return sum(map(_size, chat.messages))


def _size(message: Message) -> int:
    content = message.content
    if content is None or isinstance(content, str):
        return len(content or "")
    return sum(len(part.text or "") for part in content)


def template_messages(
    chat: ChatRequest, marks: Mapping[Place, str] = _NO_MARKS
) -> list[dict[str, Any]]:
    """Return messages for the template, with `marks` for images. Raises BadRequest for other
    content. A client's billing line is left out: it changes each time and would spoil the prefix
    cache."""
    return without_empty_systems(
        [_template_message(i, message, marks) for i, message in enumerate(chat.messages)]
    )


def encode(chat: ChatRequest, model: ServedModel, images: ChatImages | None = None) -> ChatPrompt:
    """Return the prompt; slow. Raises ContextTooLong, and BadRequest where the template refuses the
    messages or fields contradict each other."""
    renderer = _Renderer(chat, model, plan_of(chat, model), images)
    turns = template_messages(chat, images.texts if images else _NO_MARKS)
    messages = [*_default_system(chat, model), *turns]
    fitted = _fitting(chat, model, renderer, messages)
    tokens = fitted.tokens
    if not tokens:
        raise BadRequest("the messages make an empty prompt", param="messages")
    if len(tokens) >= model.context_length:
        raise ContextTooLong(model.context_length, len(tokens))
    if tokens[-1] >= FIRST_ID:
        raise BadRequest("the prompt can't end with an image", param="messages")
    checkpoints_at: tuple[int, ...] = ()
    if model.engine.status.counted.cache.checkpointed:
        shown, strips = renderer.prompts.told(fitted.messages), model.strips_reasoning
        checkpoints_at = shared_ends(shown, tokens, renderer.prompts.tokenize, strips=strips)
    opening = model.dialect.opening(model.tokenizer, tokens)
    placed = images.marks.placed(tokens) if images else ()
    return ChatPrompt(tokens, checkpoints_at, renderer.plan, opening, fitted.dropped, placed)


def _default_system(chat: ChatRequest, model: ServedModel) -> list[dict[str, Any]]:
    """Return the default system message, unless the conversation has one, even an empty one."""
    text = model.defaults.system
    if not text or chat.messages[0].role in ("system", "developer"):
        return []
    return [neutral_message("system", [text], {})]


def _fitting(
    chat: ChatRequest, model: ServedModel, renderer: "_Renderer", messages: list[dict[str, Any]]
) -> Fitted:
    """Return the messages that fit. Raises ContextTooLong by policy, or where nothing helps."""
    policy = chat.context_overflow or model.overflow.policy
    if policy == "error":
        return Fitted(messages, renderer.encode(messages, model.context_length - 1))
    overflow, context = replace(model.overflow, policy=policy), model.context_length
    # Leave room for the answer, but at most a quarter of the context.
    limit = context - min(wanted_tokens(chat, model) or context, context // 4)
    with suppress(ContextTooLong):
        return Fitted(messages, renderer.encode(messages, limit))
    marks = renderer.prompts.images
    fitter = Fitter(overflow, model.tokenizer, context, limit, renderer.encode, marks)
    return fitter.fitted(messages)


class _Renderer:
    def __init__(
        self, chat: ChatRequest, model: ServedModel, plan: ChatPlan, images: ChatImages | None
    ) -> None:
        self.plan = plan
        self.prompts = PromptRenderer(
            model.template,
            model.dialect,
            plan.toolbox.shown,
            _template_kwargs(chat, model),
            images.marks if images else None,
        )
        self._context = model.context_length
        self._goes_on = bool(chat.continue_final_message)
        opens = chat.add_generation_prompt
        self._opens = not self._goes_on if opens is None else opens

    def encode(self, messages: Sequence[dict[str, Any]], most: int) -> list[int]:
        """Return the prompt's token ids. Raises ContextTooLong for more than `most`."""
        shown = self.prompts.told(messages)
        try:
            return self.prompts.tokenize(shown, opens=self._opens, goes_on=self._goes_on, most=most)
        except PromptTooLong as error:
            raise error.of_context(self._context) from None


def _template_kwargs(chat: ChatRequest, model: ServedModel) -> dict[str, Any]:
    of_request = effort.template_kwargs(
        chat.chat_template_kwargs or {},
        model.template.variables,
        model.dialect.style,
        effort=chat.reasoning_effort,
        budget=chat.thinking_budget,
    )
    return {**model.template_kwargs, **of_request}


def _template_message(index: int, message: Message, marks: Mapping[Place, str]) -> dict[str, Any]:
    texts = _texts(index, message, marks)
    if message.role == "tool" and message.tool_call_id is None:
        raise BadRequest("a tool message needs tool_call_id", param=f"messages.{index}")
    calls = [_template_call(call) for call in message.tool_calls or ()]
    return neutral_message(message.role, texts, {**dict(message), "tool_calls": calls})


def _template_call(call: ChatToolCall | MadeCustomCall) -> dict[str, Any]:
    if isinstance(call, ChatToolCall):
        return call.model_dump(exclude_unset=True)
    function = {"name": call.custom.name, "arguments": arguments_of(call.custom.input)}
    return {"id": call.id, "type": "function", "function": function}


def _texts(index: int, message: Message, marks: Mapping[Place, str]) -> list[str]:
    path = f"messages.{index}.content"
    if message.content is None:
        if message.role == "assistant" and message.tool_calls:
            return []
        raise BadRequest("content is missing", param=path)
    if isinstance(message.content, str):
        return [message.content]
    texts: list[str] = []
    for number, part in enumerate(message.content):
        text = marks.get((index, number)) if part.type == "image_url" else part.text
        if text is None or part.type not in ("text", "image_url"):
            raise BadRequest("messages may hold text and images only", param=path)
        texts.append(text)
    return texts
