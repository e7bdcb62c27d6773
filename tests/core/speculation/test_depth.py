"""How many drafted tokens are worth a wider step."""

import random

import pytest

from omlx_server.core.speculation.depth import Chance, Offer, StepCosts, best_depth
from omlx_server.core.speculation.methods import Method
from omlx_server.core.speculation.speculation import DraftBalance, DraftController, DrafterRecord

# Of a GPU that waits for its weights, and of a device on which each token costs the same.
WAITING = [(1, 1.0), (8, 1.1), (16, 1.3), (64, 3.0)]
COMPUTING = [(1, 1.0), (64, 64.0)]
ALWAYS = 100.0


def sure(count: int, chance: float = 1.0) -> Offer:
    return Offer((chance,) * count)


def depth(offers: list[Offer], probed: list[tuple[int, float]], most: int = 16) -> int:
    return best_depth(offers, StepCosts(probed), most, ALWAYS).depth


def test_where_wider_steps_cost_nothing_all_is_drafted() -> None:
    assert depth([sure(16)], WAITING) == 16
    assert depth([sure(5)], WAITING) == 5
    assert depth([sure(16)], WAITING, most=7) == 7


def test_where_each_token_costs_the_same_nothing_is() -> None:
    assert depth([sure(16)], COMPUTING) == 0


def test_poor_drafts_are_short_and_the_poorest_none() -> None:
    depths = [depth([sure(16, chance)], WAITING) for chance in (1.0, 0.8, 0.5, 0.05)]
    assert depths[0] == 16 and depths[-1] == 0
    assert depths == sorted(depths, reverse=True) and 0 < depths[2] < depths[1] < 16


def test_with_many_rows_a_step_is_wide_already() -> None:
    assert depth([sure(16, 0.8)] * 16, [(1, 1.0), (16, 1.1), (32, 4.0), (256, 40.0)]) == 0


def test_a_row_that_drafts_nothing_waits_a_little_only() -> None:
    assert depth([sure(16), *[Offer()]], [(1, 1.0), (2, 1.0), (34, 1.2)]) == 16
    assert depth([sure(16), *[Offer()]], [(1, 1.0), (2, 1.0), (34, 1.9)]) < 16
    assert depth([sure(16), Offer()], [(1, 1.0), (2, 1.0), (4, 1.9), (34, 2.0)]) == 0


def test_a_step_takes_no_longer_than_it_may() -> None:
    costs = StepCosts([(1, 1.0), (17, 5.0)])
    assert best_depth([sure(16)], costs, 16, 6.0).depth == 16
    assert best_depth([sure(16)], costs, 16, 2.6).depth == 6
    assert best_depth([sure(16)], costs, 16, 1.0).depth == 0


def test_a_drafter_that_takes_long_drafts_little() -> None:
    costs = StepCosts(WAITING)
    depths = [best_depth([sure(16, 0.8)], costs, 16, ALWAYS, d).depth for d in (0, 0.1, 0.3, 0.9)]
    assert depths == sorted(depths, reverse=True) and depths[0] > depths[1] > depths[-1] == 0


def test_what_steps_take_later_corrects_what_was_probed() -> None:
    costs = StepCosts(WAITING)
    for _ in range(100):
        costs.note_step(1, 3.0, verifies=False)
    assert costs.seconds(1, verifies=False) == pytest.approx(3.0)
    assert costs.seconds(8, verifies=True) == pytest.approx(3.1)  # as long as none was seen
    for _ in range(100):
        costs.note_step(8, 9.0, verifies=True)
    assert costs.seconds(8, verifies=True) == pytest.approx(9.0)
    assert costs.seconds(1, verifies=False) == pytest.approx(3.0)


def test_steps_that_were_slow_once_are_tried_again() -> None:
    costs = StepCosts(WAITING)
    costs.note_step(8, 50.0, verifies=True)
    for _ in range(400):
        costs.note_step(1, 1.0, verifies=False)
    assert costs.seconds(8, verifies=True) < 1.5


def test_costs_that_were_not_measured_are_an_error() -> None:
    with pytest.raises(ValueError, match="measured"):
        StepCosts([])


def test_where_one_width_was_measured_others_take_as_much_longer() -> None:
    assert StepCosts([(1, 2.0)]).seconds(8, verifies=True) == 16.0


def test_no_step_is_believed_to_take_next_to_nothing() -> None:
    costs = StepCosts([(1, 8.0), (8, 12.0)])
    costs.note_step(8, 0.1, verifies=False)
    assert costs.seconds(1, verifies=False) == 2.0


def test_chances_are_those_of_late() -> None:
    chance = Chance()
    assert chance.value == 0.5
    for _ in range(50):
        chance.learn(4, 4)
    assert chance.value > 0.95
    for _ in range(50):
        chance.learn(0, 1)
    assert chance.value < 0.25


def test_the_account_lets_lose_a_small_part_of_the_time() -> None:
    account = DraftBalance()
    assert account.most_seconds(2.0) > 2.0
    lost = plain = 0
    for _ in range(5000):
        if account.most_seconds(1.0) >= 1.5:
            account.note_verified_step(1.5, 1.0, rows=1, tokens=1)
            lost += 1
        else:
            account.note_plain_step()
            plain += 1
    assert lost * 0.5 <= 0.02 * (lost + plain) + 2


def test_a_step_that_was_held_up_is_no_reason_to_do_without_for_long() -> None:
    account = DraftBalance()
    account.note_verified_step(1000.0, 1.0, rows=1, tokens=3)
    for _ in range(300):
        account.note_plain_step()
    assert account.most_seconds(1.0) > 1.5


def test_after_a_step_that_failed_nothing_is_bet_for_a_while() -> None:
    account = DraftBalance()
    account.note_failure()
    for _ in range(700):
        account.note_plain_step()
        assert account.most_seconds(1.0) < 1.0
    for _ in range(300):
        account.note_plain_step()
    assert account.most_seconds(1.0) > 1.5


def test_gains_pay_for_more_bets() -> None:
    account = DraftBalance()
    while account.most_seconds(1.0) > 2.0:
        account.note_verified_step(2.0, 1.0, rows=1, tokens=1)
    account.note_verified_step(2.0, 1.0, rows=2, tokens=12)
    assert account.most_seconds(1.0) > 4.0


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("probed", [WAITING, COMPUTING, [(1, 1.0), (2, 1.6), (16, 4.0)]])
@pytest.mark.parametrize("rows", [1, 4])
def test_it_is_never_much_slower_and_mostly_faster(
    right: float, probed: list[tuple[int, float]], rows: int
) -> None:
    """Drafts that are all wrong, or all right, of rows that make 400 tokens each."""
    rng, costs = random.Random(3), StepCosts(probed)
    speculation, chance = DraftController(StepCosts(probed)), Chance()
    spent, made, before = 0.0, 0, costs.seconds(rows, verifies=False)
    while made < 400 * rows:
        wanted = speculation.bet([sure(16, chance.value)] * rows, 16).depth
        seconds = costs.seconds(rows * (1 + wanted), verifies=True) * rng.uniform(0.95, 1.05)
        if wanted:
            accepted = wanted if rng.random() < right else 0
            speculation.note_verified_step(rows, rows * (1 + wanted), seconds, rows * accepted)
            chance.learn(accepted, accepted + (accepted < wanted))
            made += rows * (1 + accepted)
        else:
            speculation.note_plain_step(rows, seconds)
            chance.learn(int(rng.random() < right), 1)
            made += rows
        spent += seconds
    assert made / spent >= 0.97 * rows / before
    if right and probed is WAITING and rows == 1:
        assert made / spent >= 5 * rows / before


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("drafting", [0.02, 0.2, 0.9])
def test_nor_with_a_drafter(right: float, drafting: float) -> None:
    """One row of 2,000 tokens, of which the drafter knows each with the same chance."""
    rng, costs = random.Random(3), StepCosts(WAITING)
    drafter = DrafterRecord(Method.DRAFT, StepCosts([(1, drafting)]))
    speculation, chance = DraftController(StepCosts(WAITING), drafter), Chance()
    spent, made = 0.0, 0
    while made < 2000:
        wanted = speculation.bet([sure(16, chance.value)], 16, with_drafter=True).depth
        seconds = costs.seconds(1 + wanted, verifies=True)
        spent += seconds + wanted * drafting
        if wanted:
            accepted = next((n for n in range(wanted) if rng.random() >= right), wanted)
            speculation.note_drafting(1, wanted, wanted * drafting)
            speculation.note_verified_step(1, 1 + wanted, seconds, accepted, wanted * drafting)
            chance.learn(accepted, min(wanted, accepted + 1))
            made += 1 + accepted
        else:
            speculation.note_plain_step(1, seconds)
            chance.forget()
            made += 1
    assert made / spent >= 0.97
    if right == 1 and drafting < 0.9:
        assert made / spent >= 0.9 * 17 / (costs.seconds(17, verifies=True) + 16 * drafting)


def test_what_was_wrong_is_tried_again_later() -> None:
    chance = Chance()
    chance.learn(0, 20)
    low = chance.value
    for _ in range(200):
        chance.forget()
    assert low < 0.15 and chance.value > 0.45


# -- a drafter that was slow or wrong ----------------------------------------------------


def drafting() -> DraftController:
    """Steps of 20 ms, and a drafter that takes 2 ms for a token."""
    costs = StepCosts([(1, 0.020), (17, 0.022)])
    return DraftController(costs, DrafterRecord(Method.DRAFT, StepCosts([(1, 0.002)])))


def wanted(speculation: DraftController) -> int:
    """How many tokens the drafter would draft for a new row."""
    assert speculation.drafter is not None
    offer = sure(16, speculation.drafter.new_chance().value)
    return speculation.bet([offer], 16, with_drafter=True).depth


def test_a_drafter_that_was_slow_once_drafts_again() -> None:
    speculation = drafting()
    assert wanted(speculation) > 0
    speculation.note_drafting(1, 4, 4 * 0.050)
    speculation.note_verified_step(1, 5, 0.021, 4, 4 * 0.050)
    assert wanted(speculation) == 0
    for _ in range(400):
        speculation.note_plain_step(1, 0.020)
    assert wanted(speculation) > 0


def test_so_does_one_that_was_wrong() -> None:
    speculation = drafting()
    assert speculation.drafter is not None
    speculation.drafter.chance.learn(0, 30)
    assert wanted(speculation) == 0
    for _ in range(400):
        speculation.note_plain_step(1, 0.020)
    assert wanted(speculation) > 0
