"""Prompts for `scripts/bench speculation`, and what the answers must be."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omlx_server.core.request import Constraint, SamplingParams
from omlx_server.models.locate import Located
from omlx_server.text.grammar import to_grammar
from omlx_server.text.grammar.compile import Grammars
from omlx_server.text.grammar.vocabulary import Vocabulary
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer
from scripts.benchmarks.speculation_plan import SpeculationPlan
from scripts.benchmarks.workload import Prompt

_NAMES = (
    *("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet"),
    *("kilo", "lima", "mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango"),
)
_FORMS = (
    "{0}_{1} = {2}({3})",
    "if {0}.{1}: return {2}",
    "{0} = {1} + {2}",
    "    self.{0} = {1}.{2}()",
)
_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 40,
    "items": {
        "type": "object",
        "properties": {
            "identifier": {"type": "integer", "minimum": 0, "maximum": 999},
            "temperature_celsius": {"type": "integer", "minimum": -40, "maximum": 60},
            "measurement_status": {"enum": ["confirmed", "provisional", "withdrawn"]},
        },
        "required": ["identifier", "temperature_celsius", "measurement_status"],
    },
}


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and how its answers are sampled."""

    name: str
    title: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    streams: int
    constraint: Constraint | None = None


def tasks(located: Located, vocab: int, plan: SpeculationPlan) -> list[Task]:
    """All tasks, for a model whose logits have `vocab` entries."""
    tokenizer = Tokenizer.load(located.path)
    template, file = ChatTemplate(tokenizer), _file(plan.lines)
    prompt = partial(_prompt, tokenizer, template)
    asked = f"Print this file again, without its first line:\n{_joined(file)}"
    # The answer has begun, because a small model would rather talk about the file.
    edit = prompt(asked, _joined(file[1:5]))
    data = prompt("List measurements of a weather station as JSON.", "")
    prose = prompt("Tell a long story about a sailor who finds an island.", "")
    grammars = Grammars(Vocabulary(tokenizer, vocab))
    json = grammars.compile(to_grammar.json_schema(_SCHEMA, "schema"))
    greedy = SamplingParams(max_tokens=plan.out, temperature=0)
    drawn = SamplingParams(max_tokens=plan.out, temperature=1, seed=1)
    return [
        Task("edit_1", f"an edit of {plan.lines} lines", edit, greedy, 1),
        Task("edit_4", f"4 edits of {plan.lines} lines", edit, greedy, 4),
        Task("json_1", "JSON by a schema", data, greedy, 1, json),
        Task("prose_1", "random prose", prose, drawn, 1),
        Task("prose_8", "random prose, 8 streams", prose, drawn, 8),
    ]


def texts(located: Located, plan: SpeculationPlan) -> tuple[Prompt, Prompt]:
    """What servers are asked to continue: an edit of a file, and prose."""
    tokenizer, file = Tokenizer.load(located.path), _file(plan.lines)
    edit = f"{_joined(file)}\nThe same file, without its first line:\n\n{_joined(file[1:5])}"
    prose = "This is the long story of a sailor who found an island."
    one, other = (Prompt((), tuple(tokenizer.encode(t, special=False)), t) for t in (edit, prose))
    return one, other


def for_draft_models(prose: Task) -> tuple[list[Task], list[Task]]:
    """The tasks for a draft model that is always right, and for one that is always wrong."""
    right = "prose, with a draft model a third as large"
    wrong = "prose, with a draft model that is always wrong"
    return (
        [
            replace(prose, name="draft_1", title=right),
            replace(prose, name="draft_8", title=f"{right}, 8 streams", streams=8),
        ],
        [replace(prose, name="draft_1_wrong", title=wrong)],
    )


def _prompt(
    tokenizer: Tokenizer, template: ChatTemplate, asked: str, answer: str
) -> tuple[int, ...]:
    begun = tokenizer.encode(answer, special=False) if answer else []
    return (*template.encode([{"role": "user", "content": asked}]), *begun)


def _file(lines: int) -> list[str]:
    source = random.Random(5)
    return [
        source.choice(_FORMS).format(*source.sample(_NAMES, 3), source.randrange(100))
        for _ in range(lines)
    ]


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
