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
from omlx_server.text.grammar.to_grammar import GrammarSpec
from omlx_server.text.grammar.tools import forced_calls, free_calls
from omlx_server.text.grammar.wrappers import FreeTextConstraint
from omlx_server.text.reasoning.channels import ChannelConstraint, channel_grammar
from omlx_server.text.reasoning.constraint import ThinkingConstraint
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tool_calls.formats import JSON_TOOLS, CallFormat, json_syntax


@dataclass(frozen=True, slots=True, eq=False)
class ChatPlan:
    """Constraints of an answer. It must match `grammar` once any thought has ended; with `free`
    only calls must, and other text is free. `call_format` is the markup in which the model writes
    calls: None if there are none, or if they have a channel of their own (gpt-oss)."""

    toolbox: Toolbox
    grammar: GrammarSpec | None
    call_format: CallFormat | None
    free: bool = False


def plan_of(chat: ChatRequest, model: ServedModel) -> ChatPlan:
    """Return the plan for a chat. Raises BadRequest for what contradicts or can't be enforced."""
    toolbox, dialect = toolbox_of(chat), model.dialect
    answer_grammar = chat.answer_grammar
    # Calls in channels get their grammar later, from `_constrain_channels`.
    if not toolbox.callable or dialect.in_channels:
        return ChatPlan(toolbox, answer_grammar, None)
    special_id = model.grammars.vocabulary.special_id
    # The whole answer is constrained: either calls, or calls and the asked-for format. Then calls
    # are written as plain JSON, whatever markup the model would choose.
    if toolbox.required or answer_grammar is not None:
        answer = None if toolbox.required else answer_grammar
        grammar = forced_calls(toolbox.callable, special_id, many=toolbox.many, answer=answer)
        return ChatPlan(toolbox, grammar, JSON_TOOLS)
    if not toolbox.strict:
        return ChatPlan(toolbox, None, dialect.family)
    # The model is free to answer without a call, but a call must obey its schema.
    syntax = json_syntax(dialect.family)
    grammar = free_calls(toolbox.callable, special_id, many=toolbox.many, syntax=syntax)
    return ChatPlan(toolbox, grammar, dialect.family, free=True)


def most_answer_tokens(chat: ChatRequest, model: ServedModel) -> int:
    """Return the most tokens of the answer, 0 for no limit."""
    return max(0, chat.max_completion_tokens or chat.max_tokens or model.defaults.max_tokens)


def sampling_of(chat: ChatRequest, model: ServedModel, prompt_tokens: int) -> SamplingParams:
    """Return the sampling parameters; `max_tokens` is cut to the context. Raises BadRequest."""
    room = model.context_length - prompt_tokens
    return chat.sampling_params(
        model,
        max_tokens=min(most_answer_tokens(chat, model) or room, room),
        top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
    )


def form_of(chat: ChatRequest, plan: ChatPlan, model: ServedModel, opening: Opening) -> AnswerForm:
    dialect, call_format = model.dialect, plan.call_format
    thought_markers = dialect.style.markers if dialect.style else ()
    call_markers = call_format.markers if call_format else ()
    return AnswerForm(
        stops=chat.stops(model),
        include_stop=bool(chat.include_stop_str_in_output),
        style=dialect.style,
        opening=opening,
        recipients=dialect.recipients,
        family=call_format,
        tools=plan.toolbox.shown if plan.toolbox.callable else (),
        many=plan.toolbox.many,
        calls_only=plan.toolbox.required,
        make_call_id=dialect.make_call_id,
        shown=shown_ids(model.tokenizer, (*thought_markers, *call_markers)),
    )


async def constraint_of(
    chat: ChatRequest, plan: ChatPlan, model: ServedModel, opening: Opening
) -> Constraint | None:
    """Return the compiled constraint on the answer's tokens. Raises BadRequest, Unavailable."""
    constraint: Constraint | None = None
    if plan.grammar is not None:
        constraint = await model.grammars.constraint(plan.grammar)
        if plan.free:
            constraint = FreeTextConstraint(constraint, model.grammars.vocabulary)
    budget, markers = _thinking_budget(chat, model), model.markers
    if model.dialect.in_channels:
        constraint = await _constrain_channels(constraint, plan.toolbox, budget, model, opening)
    elif markers is not None and (constraint is not None or budget is not None):
        constraint = ThinkingConstraint(markers, opening, constraint, budget, free=plan.free)
    return with_bad_words(constraint, chat.bad_words or (), model)


async def _constrain_channels(
    answer: Constraint | None,
    toolbox: Toolbox,
    budget: int | None,
    model: ServedModel,
    opening: Opening,
) -> Constraint | None:
    """Return a constraint on thoughts, calls and final text, of which `answer` is for the text."""
    enforced = toolbox.required or toolbox.strict or answer is not None
    if not enforced and budget is None:
        return None
    # The prompt has begun the final text already, so neither thoughts nor calls need a frame.
    if answer is not None and opening is Opening.PAST and not toolbox.required:
        return answer
    frame_spec = channel_grammar(
        toolbox.callable,
        model.grammars.vocabulary.special_id,
        opening,
        required=toolbox.required,
        enforced=enforced,
        budget=budget,
        has_format=answer is not None,
    )
    channels = await model.grammars.constraint(frame_spec)
    return (
        channels
        if answer is None
        else ChannelConstraint(channels, answer, model.tokenizer.token_bytes)
    )


def _thinking_budget(chat: ChatRequest, model: ServedModel) -> int | None:
    """Return the most tokens of the thought, or None for no limit."""
    if chat.thinking_budget is not None:
        return chat.thinking_budget
    kwargs = {**model.template_kwargs, **(chat.chat_template_kwargs or {})}
    tokens = kwargs.get("thinking_budget")
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        return None
    return max(0, tokens)


def with_bad_words(
    constraint: Constraint | None, words: Sequence[str], model: ServedModel
) -> Constraint | None:
    if not words:
        return constraint
    return BadWords(spellings(model.tokenizer, words), model.vocab, constraint)
