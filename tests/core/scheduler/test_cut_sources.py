"""Where the tokens of planned cuts are."""

import pytest

from omlx_server.core.scheduler.queues import CutSources
from omlx_server.core.scheduler.sequence import Sequence
from omlx_server.core.step import Cut, SequenceId
from tests.core.simulator import make_request


def sequence() -> Sequence:
    request = make_request("a", 4, 4)
    return Sequence(SequenceId(request.id, 0), request)


def test_a_cut_is_known_while_its_step_and_the_next_are_under_way() -> None:
    sources, owner = CutSources(), sequence()
    cuts = [Cut(0, 4, block=True, worth=None) for _ in range(3)]
    sources.note(cuts, owner)
    sources.end_step()
    assert sources.take(cuts[0]) is owner
    sources.end_step()
    assert sources.take(cuts[1]) is owner
    sources.end_step()
    with pytest.raises(KeyError):
        sources.take(cuts[2])


def test_a_cut_is_taken_once() -> None:
    sources, cut = CutSources(), Cut(0, 4, block=True, worth=None)
    sources.note([cut], sequence())
    sources.take(cut)
    with pytest.raises(KeyError):
        sources.take(cut)
