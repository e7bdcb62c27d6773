"""Which blocks the cold tier gets as those of a conversation, or of a prefix that came twice."""

from itertools import count

import pytest

from omlx_server.core.blocks.block import Size
from omlx_server.core.cold.index import ColdIndex, WriteCause
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.places import place
from tests.core.simulator import KV, ROOMY

BLOCK = 4
_NEW = count(1000)


def new_tokens(tokens: int) -> tuple[int, ...]:
    return tuple(next(_NEW) for _ in range(tokens))


class Place:
    def __init__(self) -> None:
        self.cache = PrefixCache(KV, "model", ROOMY, ColdIndex(1 << 30))

    def ask(self, prompt: tuple[int, ...], answer: int = 6) -> tuple[int, ...]:
        """A prompt and its answer, both computed and kept. Returns all tokens."""
        handle = self.cache.enter(prompt[:-1], b"", ())
        self.cache.admit(handle)
        tokens, root = (*prompt, *new_tokens(answer)), self.cache.root(b"")
        for stop in [*range(BLOCK, len(tokens), BLOCK), len(tokens)]:
            at = place(root, tokens[:stop], BLOCK)
            self.cache.store_block(at, Size(40, 1), [handle.blocks])
        self.cache.leave(handle)
        return tokens

    def evicted(self) -> dict[int, WriteCause]:
        """The cause of each block, by its first token."""
        self.cache.budget = HotBudget(0, 0)
        return {record.tokens[0]: cause for _, record, cause in self.cache.take_demoted()}

    def causes(self, tokens: tuple[int, ...], evicted: dict[int, WriteCause]) -> set[WriteCause]:
        return {evicted[token] for token in tokens if token in evicted}


@pytest.fixture
def here() -> Place:
    return Place()


def test_one_turn_is_seen_once_and_two_are_a_conversation(here: Place) -> None:
    lone = here.ask(new_tokens(10))
    first = here.ask(new_tokens(10))
    second = here.ask((*first, *new_tokens(10)))
    evicted = here.evicted()
    assert here.causes(lone, evicted) == {WriteCause.SEEN_ONCE}
    assert here.causes(second, evicted) == {WriteCause.SEEN_AGAIN}, "the last turn too"


def test_many_questions_to_one_instruction_are_seen_once_each(here: Place) -> None:
    instruction = new_tokens(12)
    ends = [here.ask((*instruction, *new_tokens(10)))[12:] for _ in range(5)]
    evicted = here.evicted()
    assert here.causes(instruction, evicted) == {WriteCause.SEEN_AGAIN}
    assert [here.causes(end, evicted) for end in ends[2:]] == [{WriteCause.SEEN_ONCE}] * 3


def test_a_conversation_whose_thoughts_are_left_out_goes_on(here: Place) -> None:
    prompt = new_tokens(12)
    here.ask(prompt)
    without_answer = here.ask((*prompt, *new_tokens(10)))
    assert here.causes(without_answer, here.evicted()) == {WriteCause.SEEN_AGAIN}


def test_the_same_prompt_again_is_seen_again(here: Place) -> None:
    prompt = new_tokens(13)
    here.ask(prompt, answer=0)
    here.ask(prompt, answer=0)
    assert here.causes(prompt[:12], here.evicted()) == {WriteCause.SEEN_AGAIN}
