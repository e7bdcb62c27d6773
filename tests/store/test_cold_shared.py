"""One tier for several models, one store for several servers: each gets its own."""

import random
from pathlib import Path

import pytest

from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.secret import name_in_shared_store
from tests.store.cold_tier import (
    DATA,
    SECRET,
    SOON,
    SPACE,
    chain,
    fetch,
    in_index,
    on_disk,
    opened,
    same,
    settle,
    until,
    write,
)
from tests.store.contract import name
from tests.store.shared_tier import serving

OTHER_SECRET = b"o" * 32
SPACES = ("one", "two", "three")


# -- several models over one tier --------------------------------------------------------


def taken(tier: ColdTier, space: str) -> list[Record]:
    """What has come for one model; all of it must be whole, and its own."""
    records = []
    for event in tier.poll(space):
        assert isinstance(event, Recalled) and event.record.namespace == space
        assert same(event.packed, event.record)
        records.append(event.record)
    return records


def collected(tier: ColdTier) -> bool:
    """Whether all reads have come to an end. Takes nothing that came for a model."""
    return not list(tier.poll("nobody's")) and not tier.reads.under_way


@pytest.mark.parametrize("seed", range(5))
def test_each_model_gets_its_own_and_all_of_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    blocks = [record for space in SPACES for record in chain(12, space)]
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
    with opened(Files(tmp_path)) as tier:
        came: list[Record] = []
        rng.shuffle(blocks)
        busy = SPACES[: rng.randrange(4)]  # the others look when all is over
        for record in blocks:
            tier.read(record, SOON)
            for space in busy:
                came += taken(tier, space)
        until(lambda: collected(tier))
        assert tier.reads.waiting or len(busy) == 3
        for space in SPACES:
            came += taken(tier, space)
        assert len(came) == len(blocks) and set(came) == set(blocks)
        assert not tier.reads.waiting


def test_a_model_takes_in_only_so_much_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is woken for the rest."""
    monkeypatch.setattr("omlx_server.store.reads._PROMOTED_BYTES", 2 * DATA)
    blocks = chain(6)
    with opened(Files(tmp_path)) as tier:
        write(tier, *blocks)
        settle(tier)
        for record in blocks:
            tier.read(record, SOON)
        until(lambda: collected(tier))
        woken: list[int] = []
        tier.wake = lambda: woken.append(1)
        assert [taken(tier, SPACE) for _ in range(4)] == [blocks[:2], blocks[2:4], blocks[4:], []]
        assert len(woken) == 2


def test_questions_of_several_models_may_have_one_number(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        write(server.tier, *(chain(1, space)[0] for space in SPACES[:2]))
        server.tier.close(SOON)
    with serving(tmp_path) as server:
        for space in SPACES:
            server.ask(*chain(2, space), id=7)
        assert [server.answers(space) for space in reversed(SPACES)] == [[7], [7], [7]]
        assert in_index(server.tier) == {chain(1, space)[0].key for space in SPACES[:2]}
        assert not server.tier.reads.waiting


# -- a store that can't be listed --------------------------------------------------------


def test_what_one_server_wrote_another_finds_when_it_asks(tmp_path: Path) -> None:
    blocks = chain(4)
    with serving(tmp_path) as one, serving(tmp_path) as two:
        write(one.tier, *blocks[:3])
        settle(one.tier)
        assert len(two.tier.index) == 0 and fetch(two.tier, blocks[0]).reason == "gone"
        two.ask(*blocks)
        assert two.answers() == [1]
        assert in_index(two.tier) == {record.key for record in blocks[:3]}
        assert two.tier.index.nbytes == 0
        for record in blocks[:3]:
            assert same(fetch(two.tier, record).packed, record)
        assert two.tier.index.nbytes == one.tier.index.nbytes > 3 * DATA


def test_what_has_no_room_in_the_index_is_still_in_the_store(tmp_path: Path) -> None:
    with serving(tmp_path, budget=3 * DATA) as server:
        write(server.tier, *chain(2), *chain(2, tag=1))
        settle(server.tier)
        assert len(server.tier.index) < 4 == len(on_disk(tmp_path / "store"))
        assert server.tier.report().evicted == 0


def test_what_the_index_forgot_is_found_again_and_not_sent_again(tmp_path: Path) -> None:
    blocks = [*chain(2), *chain(2, tag=1)]
    with serving(tmp_path, budget=3 * DATA) as one, serving(tmp_path) as two:
        write(one.tier, *blocks)
        settle(one.tier)
        assert len(one.tier.index) < 4 == one.tier.report().written
        one.ask(*(record for record in blocks if record.key not in one.tier.index))
        one.answers()
        assert in_index(one.tier) == {record.key for record in blocks}
        for record in blocks:
            assert same(fetch(one.tier, record).packed, record)
        write(two.tier, *blocks)
        settle(two.tier)
        assert (two.tier.report().written, two.tier.report().dropped) == (0, {})
        assert in_index(two.tier) == {record.key for record in blocks}
        assert all(same(fetch(two.tier, record).packed, record) for record in blocks)


def test_what_others_have_removed_is_a_miss_and_forgotten(tmp_path: Path) -> None:
    (record,) = chain(1)
    with serving(tmp_path) as server:
        write(server.tier, record)
        settle(server.tier)
        server.store.clear()
        assert fetch(server.tier, record).reason == "gone"
        write(server.tier, record)
        settle(server.tier)
        assert same(fetch(server.tier, record).packed, record)


@pytest.mark.parametrize("harm", ["rejected", "damaged"])
def test_what_is_of_no_use_here_is_left_to_others(tmp_path: Path, harm: str) -> None:
    """They may know better; where the files are ours alone, it goes."""
    (record,) = chain(1)
    with serving(tmp_path) as server, opened(Files(tmp_path / "own")) as own:
        write(server.tier, record)
        write(own, record)
        settle(server.tier)
        settle(own)
        for path in tmp_path.rglob("*.safetensors") if harm == "damaged" else ():
            path.write_bytes(path.read_bytes()[:-1])
        for tier, left in ((server.tier, 1), (own, 0)):
            recalled = fetch(tier, record)
            if harm == "rejected":
                assert same(recalled.packed, record)
                tier.reject(recalled.record)
            settle(tier)
            assert record.key not in tier.index
            assert sum(tier.report().failed.values()) == 1
            root = tmp_path / "store" if tier is server.tier else tmp_path / "own"
            assert len(on_disk(root)) == left
            write(tier, record)
            settle(tier)
            assert tier.report().written == 2
            assert same(fetch(tier, record).packed, record)


def test_a_cleared_model_goes_from_the_store_as_far_as_it_is_known(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as two:
        write(one.tier, *chain(3), *chain(2, "other"))
        settle(one.tier)
        two.ask(*chain(2))
        two.answers()
        two.tier.clear(SPACE)
        settle(two.tier)
        assert len(two.tier.index) == 0
        assert len(on_disk(tmp_path / "store")) == 3


# -- secrets -----------------------------------------------------------------------------


def test_names_of_two_secrets_in_one_store_do_not_meet() -> None:
    """Nor do they tell the model; those of tomorrow are those of today."""
    names = [name(1), name(1, namespace=2)]
    own = [name_in_shared_store(one, secret) for secret in (SECRET, OTHER_SECRET) for one in names]
    assert len({one.namespace for one in (*own, *names)}) == 6
    assert {one.key for one in own} == {name(1).key}
    assert own[:2] == [name_in_shared_store(one, SECRET) for one in names]
    assert own[0].namespace == "aa46652161fd4e8a"


def test_servers_with_two_secrets_share_a_store_without_a_loss(tmp_path: Path) -> None:
    blocks = chain(3)
    with serving(tmp_path) as one, serving(tmp_path, OTHER_SECRET) as two:
        for server in (one, two):
            write(server.tier, *blocks)
            settle(server.tier)
        two.tier.clear(SPACE)
        settle(two.tier)
        for record in blocks:
            assert same(fetch(one.tier, record).packed, record)
        two.ask(*blocks)
        two.answers()
        assert (len(two.tier.index), two.tier.report().failed) == (0, {})
