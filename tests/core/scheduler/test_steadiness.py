"""When a look at the memory can be left out."""

from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.queues import SequenceQueues, Steadiness
from tests.core.simulator import KV, make_request

ROOMY = HotBudget(nbytes=1 << 30, checkpoint_bytes=1 << 30)


def queues_with(*names: str) -> SequenceQueues:
    queues = SequenceQueues(PrefixCache(KV, "model", ROOMY))
    for name in names:
        queues.add(make_request(name, 5, 9), 1)
    return queues


def test_it_holds_for_as_many_tokens_as_were_looked_for() -> None:
    steadiness = Steadiness(queues_with())
    found = [steadiness.holds]
    steadiness.note_look(3)
    for tokens in (2, 1):
        steadiness.note_fed(tokens)
        found.append(steadiness.holds)
    assert found == [False, True, False]


def test_it_ends_when_somebody_comes() -> None:
    queues = queues_with("a")
    steadiness = Steadiness(queues)
    steadiness.note_look(9)
    queues.add(make_request("b", 5, 9), 1)
    assert not steadiness.holds


def test_and_while_a_prompt_is_computed() -> None:
    queues = queues_with("a")
    steadiness = Steadiness(queues)
    queues.activate(queues.waiting[0])
    steadiness.note_look(9)
    found = [steadiness.holds]
    queues.join(queues.active[0])
    found.append(steadiness.holds)
    steadiness.note_look(9)
    found.append(steadiness.holds)
    queues.remove(next(iter(queues.running.values())))
    assert [*found, steadiness.holds] == [False, False, True, False]
