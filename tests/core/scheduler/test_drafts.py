"""What rows draft, and what is learnt of it."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from omlx_server.core.blocks.block import NOTHING_KEPT, CacheLayout, LayerKind
from omlx_server.core.request import Request, RequestId, SampledRow, SampledToken, SamplingParams
from omlx_server.core.scheduler.drafts import DraftPlan, Drafts
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.speculation.depth import Chance, StepCosts
from omlx_server.core.speculation.methods import Method
from omlx_server.core.speculation.speculation import DraftController, DrafterRecord
from omlx_server.core.step import SequenceId
from tests.core.eager import Eager
from tests.core.simulator import Foreseen

LIMITS = SchedulerLimits()
REPEATING = (1, 2, 3, 4, 5) * 4


@dataclass
class Costly(Foreseen):
    """Each drafted token would need a copy of it."""

    takes_drafts: bool = False


def row_of(tokens: tuple[int, ...] = REPEATING, **changes: Any) -> Sequence:
    """A row whose prompt is computed but for its last token."""
    id = RequestId("a")
    request = Request(id, tokens, SamplingParams(max_tokens=50), **changes)
    computed = len(tokens) - 1
    return Sequence(SequenceId(id, 0), request, fed=computed, prefilled=computed)


def planned(row: Sequence, drafter: Method | None = Method.DRAFT) -> DraftPlan:
    """With all that memory allows."""
    drafts = Drafts(Eager(drafter), NOTHING_KEPT)
    return drafts.plan([row], LIMITS, lambda more: True)


@pytest.mark.parametrize("method", [Method.DRAFT, Method.HEADS])
def test_the_drafter_is_not_asked_before_the_first_token_of_a_row_is_computed(
    method: Method,
) -> None:
    """What recurrent layers would take back then is no state."""
    row = row_of((7,))
    assert planned(row, method) == DraftPlan()
    row.feed()
    row.in_flight = 0
    row.output.append(3)
    assert planned(row, method).asks


def test_nor_for_choices_of_one_token_beside_others() -> None:
    new, old = row_of((7,)), row_of((7, 8, 9))
    old.id = SequenceId(RequestId("b"), 0)
    drafts = Drafts(Eager(Method.DRAFT), NOTHING_KEPT)
    plan = drafts.plan([new, old], LIMITS, lambda more: True)
    assert set(plan.asks) == {old.id} and not plan.drafts


@pytest.mark.parametrize("drafter", [None, Method.DRAFT])
def test_nothing_is_drafted_behind_a_token_that_is_not_yet_known(drafter: Method | None) -> None:
    """Nor for a row whose token is known, beside one whose is not: all are planned together."""
    known, launched = row_of(), row_of()
    launched.id = SequenceId(RequestId("b"), 0)
    launched.feed()
    drafts = Drafts(Eager(drafter), NOTHING_KEPT)
    rows = [known, launched]
    assert drafts.plan(rows, LIMITS, lambda more: True) == DraftPlan()
    launched.in_flight = 0
    launched.output.append(1)
    assert drafts.plan(rows, LIMITS, lambda more: True) != DraftPlan()


@pytest.mark.parametrize("drafter", [None, Method.DRAFT])
def test_a_constraint_that_takes_no_drafts_gets_none(drafter: Method | None) -> None:
    """Neither of the text nor of a drafter."""
    eager = planned(row_of(constraint=Foreseen()), drafter)
    assert eager.asks if drafter else eager.drafts
    assert planned(row_of(constraint=Costly()), drafter) == DraftPlan()
    forced = row_of(constraint=Costly())
    forced.forced = (1, 2)
    assert planned(forced, drafter) == DraftPlan()


def learnt(row: Sequence, result: SampledRow) -> tuple[float, float]:
    """The chances of a drafter and of a row that had it draft eight tokens."""
    costs = StepCosts([(1, 1.0)])
    drafter = DrafterRecord(Method.DRAFT, costs, Chance())
    row.drafter_chance = Chance()
    row.feed(8, by_drafter=True)
    Drafts(DraftController(costs, drafter), NOTHING_KEPT).learn(row, result)
    return drafter.chance.value, row.drafter_chance.value


def after(right: int, tried: int) -> float:
    chance = Chance()
    chance.learn(right, tried)
    return chance.value


def test_what_a_grammar_cuts_off_was_wrong() -> None:
    """What would end the answer is not known to be."""
    short = SampledRow((SampledToken(1), SampledToken(2)), drafted=1)
    assert learnt(row_of(constraint=Foreseen()), short) == (after(1, 2),) * 2
    assert learnt(row_of(), short) == (after(1, 1),) * 2


def test_a_token_that_was_wrong_hides_those_behind_it() -> None:
    result = SampledRow((SampledToken(1), SampledToken(2)), drafted=8)
    assert learnt(row_of(), result) == (after(1, 2),) * 2
    nothing = replace(result, tokens=(SampledToken(1),), drafted=0)
    assert learnt(row_of(constraint=Foreseen()), nothing) == (after(0, 1),) * 2
    assert learnt(row_of(), nothing) == (after(0, 0),) * 2


@pytest.mark.parametrize("drafter", [None, Method.DRAFT])
@pytest.mark.parametrize("size", range(20, 25))
def test_no_draft_passes_the_end_of_a_block(drafter: Method | None, size: int) -> None:
    row = row_of()  # 19 tokens are fed
    layout = CacheLayout(frozenset({LayerKind.DELTA}), size)
    plan = Drafts(Eager(drafter), layout).plan([row], LIMITS, lambda more: True)
    assert plan.depth == size - 20
