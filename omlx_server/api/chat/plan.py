"""What the tokens of a chat's answer must obey (tools, schemas, thinking budget), and how the
answer's text is read. Values that are made once for a request."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.tools import Toolbox, toolbox_of
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.request import Constraint
from omlx_server.text.answers.bad_words import BadWords, spellings
from omlx_server.text.answers.form import AnswerForm
from omlx_server.text.dialect import shown_ids
from omlx_server.text.grammar.to_grammar import GrammarSpec
from omlx_server.text.grammar.tools import forced_calls, free_calls
from omlx_server.text.reasoning.channels import Framed, frame
from omlx_server.text.reasoning.constraint import ThinkingConstraint
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tool_calls.formats import JSON_TOOLS, CallFormat, json_syntax


@dataclass(frozen=True, slots=True, eq=False)
class ChatPlan:
    """What a chat asks of its answer. `grammar`: what the text after any thought must obey; with
    `free`, only the calls must obey it. `family`: the markup in which the answer writes its calls;
    None where it can't call, and where it does so in a channel of its own (gpt-oss)."""

    toolbox: Toolbox
    grammar: GrammarSpec | None
    family: CallFormat | None
    free: bool = False


def plan_of(chat: ChatRequest, model: ServedModel) -> ChatPlan:
    """The plan for a chat. Raises BadRequest where fields contradict each other or a schema can't
    be enforced."""
    toolbox, wanted = toolbox_of(chat), chat.format
    if not toolbox.callable or model.dialect.in_channels:
        return ChatPlan(toolbox, wanted, None)
    special_id = model.grammars.special_id
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


def form_of(chat: ChatRequest, plan: ChatPlan, model: ServedModel, opening: Opening) -> AnswerForm:
    """How the text of the answer is read: its stop strings, the markup of thoughts and calls."""
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
    """The constraint on the tokens of the answer: grammar, thinking budget and bad words; None
    where there is none of them. Waits until a grammar is compiled. Raises BadRequest for a grammar
    that can't be used, and what else its compilation raises (Unavailable)."""
    inner: Constraint | None = None
    if plan.grammar is not None:
        inner = await model.grammars.constraint(plan.grammar)
    if inner is not None and plan.free:
        inner = model.grammars.free(inner)
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
    """The constraint on an answer in channels, whose final text must obey `answer`."""
    enforced = toolbox.required or toolbox.strict or answer is not None
    if not enforced and budget is None:
        return None
    if answer is not None and opening is Opening.PAST and not toolbox.required:
        return answer
    spec = frame(
        toolbox.callable,
        model.grammars.special_id,
        opening,
        required=toolbox.required,
        enforced=enforced,
        budget=budget,
    )
    framed = await model.grammars.constraint(spec)
    return framed if answer is None else Framed(framed, answer, model.tokenizer.token_bytes)


def _thinking_budget(chat: ChatRequest, model: ServedModel) -> int | None:
    """The most tokens that a thought may have; None for no limit."""
    if chat.thinking_budget is not None:
        return chat.thinking_budget
    kwargs = {**model.template_kwargs, **(chat.chat_template_kwargs or {})}
    value = kwargs.get("thinking_budget")
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else None


def with_bad_words(
    constraint: Constraint | None, words: Sequence[str], model: ServedModel
) -> Constraint | None:
    """A constraint that forbids each of `words` and keeps to `constraint`, if there is one."""
    if not words:
        return constraint
    return BadWords(spellings(model.tokenizer, words), model.vocab, constraint)
