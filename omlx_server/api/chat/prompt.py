"""Turn a validated chat request into token ids."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from omlx_server.api.chat.fit_prompt import Fitted, Fitter
from omlx_server.api.chat.images import ChatImages, Place
from omlx_server.api.chat.plan import ChatPlan, most_answer_tokens, plan_of
from omlx_server.api.chat.request import (
    UNSUPPORTED,
    ChatRequest,
    ChatToolCall,
    MadeCustomCall,
    Message,
)
from omlx_server.api.chat.shared_ends import shared_ends
from omlx_server.api.chat.tools import arguments_of
from omlx_server.api.http.json_body import refuse_unsupported
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.images import FIRST_ID, ImageSpan
from omlx_server.errors import BadRequest, ContextTooLong, PromptTooLong
from omlx_server.text.dialect import PromptRenderer
from omlx_server.text.reasoning import style
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.templates.messages import neutral_message, without_empty_systems

_NO_MARKS: Mapping[Place, str] = MappingProxyType({})


def check_supported(chat: ChatRequest) -> None:
    """Raise BadRequest for fields that are not supported or contradict each other."""
    refuse_unsupported(chat, UNSUPPORTED)
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
    """A prompt's token ids. Later prompts probably repeat it up to `checkpoints_at`."""

    tokens: list[int]
    checkpoints_at: tuple[int, ...]
    plan: ChatPlan
    opening: Opening  # whether the answer begins in a thought
    dropped: int = 0  # messages
    images: tuple[ImageSpan, ...] = ()


def text_chars(chat: ChatRequest) -> int:
    """Return the characters of all messages' texts."""
    chars = 0
    for message in chat.messages:
        content = message.content or ""
        texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
        chars += sum(map(len, texts))
    return chars


def template_messages(
    chat: ChatRequest, marks: Mapping[Place, str] = _NO_MARKS
) -> list[dict[str, Any]]:
    """Return messages for the template, with `marks` for images. Raises BadRequest."""
    messages = [_template_message(i, message, marks) for i, message in enumerate(chat.messages)]
    return without_empty_systems(messages)


def encode(chat: ChatRequest, model: ServedModel, images: ChatImages | None = None) -> ChatPrompt:
    """Return the prompt; slow. Raises ContextTooLong, and BadRequest for fields or messages."""
    encoder = _PromptEncoder(chat, model, plan_of(chat, model), images)
    messages = template_messages(chat, images.mark_texts if images else _NO_MARKS)
    # The conversation's own system message counts even where it is empty.
    if model.defaults.system and chat.messages[0].role not in ("system", "developer"):
        messages.insert(0, neutral_message("system", [model.defaults.system], {}))
    fitted = _encode_what_fits(chat, model, encoder, messages)
    tokens = fitted.tokens
    if not tokens:
        raise BadRequest("the messages make an empty prompt", param="messages")
    if len(tokens) >= model.context_length:
        raise ContextTooLong(model.context_length, len(tokens))
    if tokens[-1] >= FIRST_ID:
        raise BadRequest("the prompt can't end with an image", param="messages")
    checkpoints_at: tuple[int, ...] = ()
    if model.engine.status.counted.cache.checkpointed:
        shown, strips = encoder.renderer.fitted(fitted.messages), model.strips_reasoning
        checkpoints_at = shared_ends(shown, tokens, encoder.renderer.tokenize, strips=strips)
    opening = model.dialect.opening(model.tokenizer, tokens)
    spans = images.marks.spans_in(tokens) if images else ()
    return ChatPrompt(tokens, checkpoints_at, encoder.plan, opening, fitted.dropped, spans)


def _encode_what_fits(
    chat: ChatRequest, model: ServedModel, encoder: "_PromptEncoder", messages: list[dict[str, Any]]
) -> Fitted:
    """Return the messages that fit. Raises ContextTooLong by policy, or where nothing helps."""
    context, policy = model.context_length, chat.context_overflow or model.overflow.policy
    if policy == "error":
        return Fitted(messages, encoder.encode(messages, context - 1))
    # Leave room for the answer, but at most a quarter of the context.
    limit = context - min(most_answer_tokens(chat, model) or context, context // 4)
    with suppress(ContextTooLong):
        return Fitted(messages, encoder.encode(messages, limit))
    overflow, marks = replace(model.overflow, policy=policy), encoder.renderer.images
    return Fitter(overflow, model.tokenizer, context, limit, encoder.encode, marks).fit(messages)


class _PromptEncoder:
    """Encodes the messages of one request."""

    def __init__(
        self, chat: ChatRequest, model: ServedModel, plan: ChatPlan, images: ChatImages | None
    ) -> None:
        self.plan = plan
        self.renderer = PromptRenderer(
            model.template,
            model.dialect,
            plan.toolbox.shown,
            _template_kwargs(chat, model),
            images.marks if images else None,
        )
        self._context = model.context_length
        self._continues = bool(chat.continue_final_message)
        opens_answer = chat.add_generation_prompt
        self._opens_answer = not self._continues if opens_answer is None else opens_answer

    def encode(self, messages: Sequence[dict[str, Any]], most: int) -> list[int]:
        """Return the prompt's token ids. Raises ContextTooLong for more than `most`."""
        shown = self.renderer.fitted(messages)
        opens, goes_on = self._opens_answer, self._continues
        try:
            return self.renderer.tokenize(shown, opens=opens, goes_on=goes_on, most=most)
        except PromptTooLong as error:
            raise error.of_context(self._context) from None


def _template_kwargs(chat: ChatRequest, model: ServedModel) -> dict[str, Any]:
    """Return the template's variables: the model's, and over them the request's."""
    of_request = style.template_kwargs(
        chat.chat_template_kwargs or {},
        model.template.variables,
        model.dialect.style,
        effort=chat.reasoning_effort,
        budget=chat.thinking_budget,
    )
    return {**model.template_kwargs, **of_request}


def _template_message(index: int, message: Message, marks: Mapping[Place, str]) -> dict[str, Any]:
    texts = _content_texts(index, message, marks)
    if message.role == "tool" and message.tool_call_id is None:
        raise BadRequest("a tool message needs tool_call_id", param=f"messages.{index}")
    calls = [_function_call(call) for call in message.tool_calls or ()]
    # It leaves out a client's billing line, which changes each time: the prefix cache would miss.
    return neutral_message(message.role, texts, {**dict(message), "tool_calls": calls})


def _function_call(call: ChatToolCall | MadeCustomCall) -> dict[str, Any]:
    """Return a past call for the template, to which a custom tool is a function of one text."""
    if isinstance(call, ChatToolCall):
        return call.model_dump(exclude_unset=True)
    function = {"name": call.custom.name, "arguments": arguments_of(call.custom.input)}
    return {"id": call.id, "type": "function", "function": function}


def _content_texts(index: int, message: Message, marks: Mapping[Place, str]) -> list[str]:
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
