"""How a chat request is put to its model, and how the answer is to be read. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.api.chat.effort import thinking_budget
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.tools import Toolbox, toolbox_of
from omlx_server.api.models.served import ServedModel
from omlx_server.core.request import Constraint
from omlx_server.text.answers.bad_words import BadWords, spellings
from omlx_server.text.answers.form import Form
from omlx_server.text.dialect import shown_ids
from omlx_server.text.grammar.spec import GrammarSpec
from omlx_server.text.grammar.tools import forced_calls, free_calls
from omlx_server.text.reasoning.constraint import Thinking
from omlx_server.text.reasoning.style import Opening
from omlx_server.text.tools.fallback import told
from omlx_server.text.tools.families import JSON_TOOLS, Family, json_syntax

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """`grammar`: what the answer must obey, after any thought; where it is `free`, only its calls
    must. `family`: the markup of its calls, None where there can be none."""

    toolbox: Toolbox
    grammar: GrammarSpec | None
    family: Family | None
    free: bool = False


def plan_of(chat: ChatRequest, model: ServedModel) -> Plan:
    """Raises BadRequest where fields contradict each other or a schema can't be enforced."""
    toolbox, wanted = toolbox_of(chat), chat.format
    if not toolbox.callable:
        return Plan(toolbox, wanted, None)
    special_id = model.grammars.special_id
    if toolbox.required:
        grammar = forced_calls(toolbox.callable, special_id, many=toolbox.many)
        return Plan(toolbox, grammar, JSON_TOOLS)
    if model.dialect.style is not None and model.dialect.style.channels:
        # A call has a channel of its own there: a grammar would see the answer only.
        return Plan(toolbox, wanted, model.dialect.family)
    if wanted is not None:
        grammar = forced_calls(toolbox.callable, special_id, many=toolbox.many, answer=wanted)
        return Plan(toolbox, grammar, JSON_TOOLS)
    if toolbox.strict:
        family = model.dialect.family
        grammar = free_calls(
            toolbox.callable, special_id, many=toolbox.many, syntax=json_syntax(family)
        )
        return Plan(toolbox, grammar, family, free=True)
    return Plan(toolbox, None, model.dialect.family)


def told_messages(messages: Messages, plan: Plan, model: ServedModel) -> Messages:
    """As the template can take them."""
    dialect = model.dialect
    return told(
        messages, plan.toolbox.shown, shows_tools=dialect.shows_tools, systems=dialect.systems
    )


def form_of(chat: ChatRequest, plan: Plan, model: ServedModel, opening: Opening) -> Form:
    """How the text of the answer is read."""
    dialect, family = model.dialect, plan.family
    markers = (
        *(dialect.style.markers if dialect.style else ()),
        *(family.markers if family else ()),
    )
    ends = (family.start,) if family and family.start in model.tokenizer.vocabulary else ()
    return Form(
        stops=chat.stops,
        include_stop=bool(chat.include_stop_str_in_output),
        style=dialect.style,
        opening=opening,
        ends=ends,
        family=family,
        tools=plan.toolbox.shown if family else (),
        many=plan.toolbox.many,
        calls_only=plan.toolbox.required,
        make_call_id=dialect.make_call_id,
        shown=shown_ids(model.tokenizer, markers),
    )


async def constraint_of(
    chat: ChatRequest, plan: Plan, model: ServedModel, opening: Opening
) -> Constraint | None:
    """What the tokens of the answer must obey. Waits for a grammar to be compiled."""
    inner = None if plan.grammar is None else await model.grammars.constraint(plan.grammar)
    if inner is not None and plan.free:
        inner = model.grammars.free(inner)
    constraint = _after_thought(chat, plan, model, opening, inner)
    return with_bad_words(constraint, chat.bad_words or (), model)


def _after_thought(
    chat: ChatRequest,
    plan: Plan,
    model: ServedModel,
    opening: Opening,
    inner: Constraint | None,
) -> Constraint | None:
    budget = thinking_budget(chat, model)
    if model.marks is None or (inner is None and budget is None):
        return inner
    calls_apart = model.marks.channels and plan.family is not None and not plan.toolbox.required
    begin = model.grammars.special_id(plan.family.start) if plan.free and plan.family else None
    calls = frozenset() if begin is None else frozenset({begin})
    return Thinking(
        model.marks, opening, inner, budget, may_end=calls_apart, free=plan.free, calls=calls
    )


def with_bad_words(
    constraint: Constraint | None, words: Sequence[str], model: ServedModel
) -> Constraint | None:
    """`constraint`, and none of `words` besides."""
    if not words:
        return constraint
    return BadWords(spellings(model.tokenizer, words), model.vocab, constraint)
