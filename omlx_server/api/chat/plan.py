"""Constraints of a chat's answer (length, tools, schemas, thinking budget), and how it is read."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.tools import Toolbox, toolbox_of
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.request import Constraint, SamplingParams
from omlx_server.text.answers.bad_words import BadWords, spellings
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.dialect import shown_ids
from omlx_server.text.grammar.free_text import Free
from omlx_server.text.grammar.to_grammar import GrammarSpec
from omlx_server.text.grammar.tools import forced_calls, free_calls
from omlx_server.text.reasoning.channels import Framed, frame
from omlx_server.text.reasoning.constraint import ThinkingConstraint
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tool_calls.formats import JSON_TOOLS, CallFormat, json_syntax


@dataclass(frozen=True, slots=True, eq=False)
class ChatPlan:
    """Constraints of an answer. It must match `grammar` once any thought has ended; with `free`
    only calls must, and other text is free. `family` is the markup in which the model writes
    calls: None if there are none, or if they have a channel of their own (gpt-oss)."""

    toolbox: Toolbox
    grammar: GrammarSpec | None
    family: CallFormat | None
    free: bool = False


def plan_of(chat: ChatRequest, model: ServedModel) -> ChatPlan:
    """Return the plan for a chat. Raises BadRequest for contradictions and schemas that can't be
    enforced."""
    toolbox, wanted = toolbox_of(chat), chat.format
    if not toolbox.callable or model.dialect.in_channels:
        return ChatPlan(toolbox, wanted, None)
    special_id = model.grammars.vocabulary.special_id
    if toolbox.required:
        grammar = forced_calls(toolbox.callable, special_id, many=toolbox.many)
        return ChatPlan(toolbox, grammar, JSON_TOOLS)
    if wanted is not None:
        grammar = forced_calls(toolbox.callable, special_id, many=toolbox.many, answer=wanted)
        return ChatPlan(toolbox, grammar, JSON_TOOLS)
    if toolbox.strict:
        family = model.dialect.family
        grammar = free_calls(
            toolbox.callable, special_id, many=toolbox.many, syntax=json_syntax(family)
        )
        return ChatPlan(toolbox, grammar, family, free=True)
    return ChatPlan(toolbox, None, model.dialect.family)


def wanted_tokens(chat: ChatRequest, model: ServedModel) -> int:
    """Return the most tokens of the answer, 0 for no limit."""
    return max(0, chat.max_completion_tokens or chat.max_tokens or model.defaults.max_tokens)


def sampling_of(chat: ChatRequest, model: ServedModel, prompt_tokens: int) -> SamplingParams:
    """Return the sampling parameters; `max_tokens` is cut to the context. Raises BadRequest."""
    room = model.context_length - prompt_tokens
    return chat.params(
        model,
        max_tokens=min(wanted_tokens(chat, model) or room, room),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
    )


def form_of(chat: ChatRequest, plan: ChatPlan, model: ServedModel, opening: Opening) -> AnswerForm:
    dialect, family = model.dialect, plan.family
    markers = (
        *(dialect.style.markers if dialect.style else ()),
        *(family.markers if family else ()),
    )
    return AnswerForm(
        stops=chat.stops(model),
        include_stop=bool(chat.include_stop_str_in_output),
        style=dialect.style,
        opening=opening,
        recipients=dialect.recipients,
        family=family,
        tools=plan.toolbox.shown if plan.toolbox.callable else (),
        many=plan.toolbox.many,
        calls_only=plan.toolbox.required,
        make_call_id=dialect.make_call_id,
        shown=shown_ids(model.tokenizer, markers),
    )


async def constraint_of(
    chat: ChatRequest, plan: ChatPlan, model: ServedModel, opening: Opening
) -> Constraint | None:
    """Return the compiled constraint on the answer's tokens. Raises BadRequest for a bad grammar,
    Unavailable where it can't be compiled now."""
    inner: Constraint | None = None
    if plan.grammar is not None:
        inner = await model.grammars.constraint(plan.grammar)
    if inner is not None and plan.free:
        inner = Free(inner, model.grammars.vocabulary)
    budget, markers = _thinking_budget(chat, model), model.markers
    if model.dialect.in_channels:
        inner = await _in_channels(inner, plan.toolbox, budget, model, opening)
    elif markers is not None and (inner is not None or budget is not None):
        inner = ThinkingConstraint(markers, opening, inner, budget, free=plan.free)
    return with_bad_words(inner, chat.bad_words or (), model)


async def _in_channels(
    answer: Constraint | None,
    toolbox: Toolbox,
    budget: int | None,
    model: ServedModel,
    opening: Opening,
) -> Constraint | None:
    enforced = toolbox.required or toolbox.strict or answer is not None
    if not enforced and budget is None:
        return None
    if answer is not None and opening is Opening.PAST and not toolbox.required:
        return answer
    spec = frame(
        toolbox.callable,
        model.grammars.vocabulary.special_id,
        opening,
        required=toolbox.required,
        enforced=enforced,
        budget=budget,
        has_format=answer is not None,
    )
    framed = await model.grammars.constraint(spec)
    return framed if answer is None else Framed(framed, answer, model.tokenizer.token_bytes)


def _thinking_budget(chat: ChatRequest, model: ServedModel) -> int | None:
    if chat.thinking_budget is not None:
        return chat.thinking_budget
    kwargs = {**model.template_kwargs, **(chat.chat_template_kwargs or {})}
    value = kwargs.get("thinking_budget")
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else None


def with_bad_words(
    constraint: Constraint | None, words: Sequence[str], model: ServedModel
) -> Constraint | None:
    if not words:
        return constraint
    return BadWords(spellings(model.tokenizer, words), model.vocab, constraint)
