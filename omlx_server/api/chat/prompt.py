"""Turns a validated chat request into token ids, fits them into the context, and finds the ends
that the next turn shares."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from types import MappingProxyType
from typing import Any

from omlx_server.api.chat.images import ChatImages, Place
from omlx_server.api.chat.plan import ChatPlan, most_answer_tokens, plan_of
from omlx_server.api.chat.request import (
    UNSUPPORTED,
    ChatRequest,
    ChatToolCall,
    MadeCustomCall,
    Message,
)
from omlx_server.api.chat.tools import arguments_of
from omlx_server.api.http.json_body import refuse_unsupported
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.blocks.keys import shared
from omlx_server.core.images import FIRST_ID, ImageSpan
from omlx_server.errors import BadRequest, ContextTooLong, PromptTooLong
from omlx_server.text.dialect import PromptRenderer
from omlx_server.text.image_marks import ImageMarks
from omlx_server.text.overflow import Overflow, Unit, Window, front_length, just_enough, units_of
from omlx_server.text.reasoning import style
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.templates.messages import neutral_message, without_empty_systems
from omlx_server.text.tokenizer import Tokenizer

_NO_MARKS: Mapping[Place, str] = MappingProxyType({})


TemplateMessage = dict[str, Any]
# It raises ContextTooLong for more tokens than its second argument.
Encode = Callable[[Sequence[TemplateMessage], int], list[int]]

# Tokens of a message besides its text, where the template refuses the probe.
_USUAL_OVERHEAD = 8
_USER: TemplateMessage = {"role": "user", "content": "a"}
_ASSISTANT: TemplateMessage = {"role": "assistant", "content": "a"}
# Costs are estimates: where the chosen messages are too long after all, the next factor is tried.
_COST_FACTORS = (1.0, 1.15, 1.5, 2.5)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits, its messages, and how many were dropped."""

    messages: list[TemplateMessage]
    tokens: list[int]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Fitter:
    """Fits one conversation into `context` tokens, its prompt into `limit`, in linear time."""

    overflow: Overflow
    tokenizer: Tokenizer
    context: int
    limit: int
    encode: Encode
    images: ImageMarks | None = None

    def fit(self, messages: list[TemplateMessage]) -> Fitted:
        """Return the messages that fit. Raises ContextTooLong where those that must stay do not."""
        front = messages[: front_length(messages)]
        units = units_of(messages, self._message_costs(messages))
        front_tokens = self._encode_if_it_fits([*front, _USER])
        if front_tokens is None:
            raise self._too_long()
        for factor in _COST_FACTORS:
            stays = self._choose_units(units, len(front_tokens), factor)
            if stays is None:
                break
            positions = [p for unit in compress(units, stays) for p in unit.messages]
            chosen = [*front, *(messages[position] for position in positions)]
            tokens = self._encode_if_it_fits(chosen)
            if tokens is not None:
                return Fitted(chosen, tokens, len(messages) - len(chosen))
        raise self._too_long()

    def _too_long(self) -> ContextTooLong:
        reserved = self.context - self.limit
        return ContextTooLong(self.context, self.limit + 1, reserved=reserved)

    def _choose_units(self, units: Sequence[Unit], front: int, factor: float) -> list[bool] | None:
        """Return whether each unit stays; None where too little can go. `front`: tokens."""
        scaled = [replace(unit, cost=round(unit.cost * factor)) for unit in units]
        if self.overflow.policy == "truncate":
            return just_enough(scaled, self.limit, front)
        low = min(self.limit, int(self.context * self.overflow.low_water))
        return Window(self.limit, low, front).kept(scaled)

    def _message_costs(self, messages: Sequence[TemplateMessage]) -> list[int]:
        """Estimate the tokens of each message."""
        overhead = self._tokens_around_a_message()
        texts = [_text_in(message) for message in messages]
        if self.images is None:
            return [overhead + count for count in self.tokenizer.counts(texts, self.limit)]
        without_images = [self.images.remove_marks(text) for text in texts]
        text_counts = self.tokenizer.counts(without_images, self.limit)
        image_counts = map(self.images.count_tokens, texts)
        return [overhead + sum(both) for both in zip(text_counts, image_counts, strict=True)]

    def _tokens_around_a_message(self) -> int:
        """Return the tokens that the template adds to a message: half the cost of two more."""
        try:
            one = len(self.encode([_USER], self.limit))
            three = len(self.encode([_USER, _ASSISTANT, _USER], self.limit))
            return max(1, math.ceil((three - one) / 2))
        except BadRequest:
            return _USUAL_OVERHEAD

    def _encode_if_it_fits(self, messages: Sequence[TemplateMessage]) -> list[int] | None:
        try:
            return self.encode(messages, self.limit)
        except ContextTooLong:
            return None


def _text_in(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    calls_text = json.dumps(calls, ensure_ascii=False) if calls else ""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    return "\n".join(part for part in (message["content"], thought, calls_text) if part)


Messages = Sequence[Mapping[str, Any]]
EncodeMessages = Callable[[Messages], list[int]]

_OTHER_QUESTION = {"role": "user", "content": "\N{WHITE SQUARE}"}
# A text that no template holds.
_MARKER = "o7q1"
_ANSWER = {"role": "assistant", "content": _MARKER}


def shared_ends(
    messages: Messages, tokens: Sequence[int], encode: EncodeMessages, *, strips: bool = False
) -> tuple[int, ...]:
    """Return positions in `tokens` up to which later prompts repeat this one, where:

    - another user message follows the system prompt
    - another user message replaces the last one
    - the conversation goes on; with `strips` it leaves out the reasoning of past answers
    """
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    others = [[*messages[:kept], _OTHER_QUESTION] for kept in {front_length(messages), last_user}]
    ends = {_count_shared(tokens, other, encode) for other in others}
    answers = [] if messages[-1]["role"] == "assistant" else [_ANSWER]
    # Where the template refuses the next turn, assume that it repeats the whole prompt.
    next_turn = _count_shared(tokens, [*messages, *answers, _OTHER_QUESTION], encode) or len(tokens)
    # The caches of a prompt hold all but its last token, and their end is a checkpoint anyway.
    if strips or next_turn < len(tokens):
        ends.add(min(next_turn, len(tokens) - 1))
    return tuple(sorted(end for end in ends if end > 0))


def _count_shared(tokens: Sequence[int], other: Messages, encode: EncodeMessages) -> int:
    """Count the first `tokens` that another conversation shares, 0 if the template refuses it."""
    try:
        return shared(tokens, encode(other))
    except BadRequest:
        return 0


def strips_reasoning(render: Callable[[Messages], str]) -> bool:
    """Return whether a template leaves reasoning out of past answers."""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": f"<think>\n{_MARKER}\n</think>\n\nb"},
        {"role": "user", "content": "c"},
    ]
    try:
        return _MARKER not in render(turns)
    except BadRequest:
        return False


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
