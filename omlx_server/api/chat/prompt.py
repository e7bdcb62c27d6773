"""From a validated chat request to what the engine computes: token ids and sampling parameters."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from omlx_server.api.access.tenant import Tenant
from omlx_server.api.chat import shared_ends as marks
from omlx_server.api.chat.effort import template_kwargs
from omlx_server.api.chat.overflow import Fitter
from omlx_server.api.chat.plan import Plan, plan_of, told_messages
from omlx_server.api.chat.request import UNSUPPORTED, ChatRequest, Message
from omlx_server.api.chat.shared_ends import Messages
from omlx_server.api.http.exchange import begun
from omlx_server.api.models.served import ServedModel
from omlx_server.core.request import Constraint, Request, RequestId
from omlx_server.errors import BadRequest, ContextTooLong, PromptTooLong, TooManyTokens
from omlx_server.text.reasoning.style import Opening

# Claude Code puts a block into its system prompt whose value changes with every request.
_BILLING = "x-anthropic-billing-header"


def check_supported(chat: ChatRequest) -> None:
    """Refuse what would have to be ignored, and combinations that contradict each other."""
    for name, message in UNSUPPORTED.items():
        if getattr(chat, name):
            raise BadRequest(message, param=name)
    if chat.modalities not in (None, [], ["text"]):
        raise BadRequest("this model makes text only", param="modalities")
    chat.check_stream_options()
    if chat.top_logprobs is not None and not chat.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A prompt's token ids, and the positions up to which later ones will probably repeat it. How
    it is put to the model, and whether it leaves that within a thought. So many messages were
    `dropped` because the conversation outgrew the context."""

    tokens: list[int]
    marks: tuple[int, ...]
    plan: Plan
    opening: Opening
    dropped: int = 0


def size_of(chat: ChatRequest) -> int:
    """The characters of its messages."""
    return sum(map(_size, chat.messages))


def _size(message: Message) -> int:
    content = message.content
    if content is None or isinstance(content, str):
        return len(content or "")
    return sum(len(part.text or "") for part in content)


def template_messages(chat: ChatRequest) -> list[dict[str, Any]]:
    """Messages as chat templates want them: plain strings, developer as system.

    A system text that changes with every request would keep all that follows from being found
    again; the one that is known to do so says nothing to the model, and is left out.
    """
    messages = [_template_message(i, message) for i, message in enumerate(chat.messages)]
    return [m for m in messages if m["role"] != "system" or m["content"]] or messages


def encode(chat: ChatRequest, model: ServedModel) -> Encoded:
    """The prompt's token ids. Slow for long prompts: runs in a worker thread.

    Raises:
        ContextTooLong, BadRequest: the prompt is too long, or the template refused it.
    """
    renderer = _Renderer(chat, model, plan_of(chat, model))
    messages = template_messages(chat)
    kept, tokens = _fitting(chat, model, renderer, messages)
    if not tokens:
        raise BadRequest("the messages make an empty prompt", param="messages")
    if len(tokens) >= model.context_length:
        raise ContextTooLong(model.context_length, len(tokens))
    marks = _marks(model, renderer, kept, tokens)
    opening = model.dialect.opening(model.tokenizer, tokens)
    return Encoded(tokens, marks, renderer.plan, opening, len(messages) - len(kept))


def _fitting(
    chat: ChatRequest, model: ServedModel, renderer: "_Renderer", messages: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[int]]:
    """The messages that stay and their tokens: fewer than there are where all are too long."""
    policy = chat.context_overflow or model.overflow.policy
    if policy == "error":
        return messages, renderer.encode(messages, model.context_length - 1)
    overflow, context = replace(model.overflow, policy=policy), model.context_length
    # Room for the answer, but not so much that a prompt would be empty.
    limit = context - min(_wanted(chat, model) or context, context // 4)
    with suppress(ContextTooLong):
        return messages, renderer.encode(messages, limit)
    fitter = Fitter(overflow, model.tokenizer, context, limit, renderer.encode)
    fitted = fitter.fitted(messages)
    return fitted.messages, fitted.tokens


class _Renderer:
    """Messages to token ids, as one request wants it. `plan`: what goes with them."""

    def __init__(self, chat: ChatRequest, model: ServedModel, plan: Plan) -> None:
        self.plan = plan
        self._model = model
        self._goes_on = bool(chat.continue_final_message)
        given = chat.add_generation_prompt
        self._opens = not self._goes_on if given is None else given
        self._tools = plan.toolbox.shown if model.dialect.shows_tools else None
        self._kwargs = template_kwargs(chat, model)

    def told(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return told_messages(messages, self.plan, self._model)

    def encode(self, messages: Sequence[dict[str, Any]], most: int) -> list[int]:
        """The prompt. Raises ContextTooLong where it has more than `most` tokens, without encoding
        what is hopelessly long."""
        told, limit = self.told(list(messages)), self._model.context_length
        try:
            return self.tokenize(told, opens=self._opens, goes_on=self._goes_on, most=most)
        except TooManyTokens as error:
            raise ContextTooLong(limit, error.at_least) from None
        except PromptTooLong:
            raise ContextTooLong(limit, limit + 1) from None

    def tokenize(
        self,
        messages: Messages,
        *,
        opens: bool = True,
        goes_on: bool = False,
        most: int | None = None,
    ) -> list[int]:
        return self._model.template.encode(
            messages,
            tools=self._tools,
            add_generation_prompt=opens,
            continue_final_message=goes_on,
            kwargs=self._kwargs,
            most=most,
        )


def _marks(
    model: ServedModel, renderer: _Renderer, messages: list[dict[str, Any]], tokens: list[int]
) -> tuple[int, ...]:
    """Only a model with recurrent layers has a use for them."""
    if not model.engine.status.cache.checkpointed:
        return ()
    ends = marks.shared_ends(renderer.told(messages), tokens, renderer.tokenize)
    return (*ends, len(tokens) - 1) if model.strips_reasoning else ends


def build_request(
    chat: ChatRequest,
    model: ServedModel,
    id: RequestId,
    encoded: Encoded,
    constraint: Constraint | None,
    *,
    timeout: float,
    tenant: Tenant,
) -> Request:
    """`timeout` in seconds from now; 0 means none."""
    arrived = begun()
    return Request(
        id=id,
        tokens=tuple(encoded.tokens),
        sampling=chat.params(
            model,
            max_tokens=_max_tokens(chat, model, len(encoded.tokens)),
            top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        ),
        n=chat.n or 1,
        priority=chat.priority or 0,
        arrived=arrived,
        deadline=arrived + timeout if timeout else None,
        salt=tenant.salt,
        marks=encoded.marks,
        constraint=constraint,
        owner=tenant.owner,
    )


def _max_tokens(chat: ChatRequest, model: ServedModel, prompt_tokens: int) -> int:
    """An answer ends with the context."""
    room = model.context_length - prompt_tokens
    return min(_wanted(chat, model) or room, room)


def _wanted(chat: ChatRequest, model: ServedModel) -> int:
    """0 where nothing is said."""
    return chat.max_completion_tokens or chat.max_tokens or model.defaults.max_tokens


def _template_message(index: int, message: Message) -> dict[str, Any]:
    content = _text(index, message)
    if message.role in ("system", "developer") and content.startswith(_BILLING):
        content = ""
    if message.role == "tool" and message.tool_call_id is None:
        raise BadRequest("a tool message needs tool_call_id", param=f"messages.{index}")
    result: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content,
    }
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    if message.tool_calls:
        result["tool_calls"] = [call.model_dump(exclude_unset=True) for call in message.tool_calls]
    return result


def _text(index: int, message: Message) -> str:
    path = f"messages.{index}.content"
    if message.content is None:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise BadRequest("content is missing", param=path)
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise BadRequest("this model takes text only", param=path)
    texts = [part.text or "" for part in message.content]
    if message.role in ("system", "developer"):
        texts = [text for text in texts if not text.startswith(_BILLING)]
    return "".join(texts)
