"""Prefixes as archives between instances: what one holds another continues from, bit for bit,
having computed what the plan says and no more."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.base import CacheRow
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.core.blocks.record import PackedArrays, Record, RecordKind
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.engine.client import archives
from omlx_server.engine.client.archives import pack_blocks
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.store.archives.archive import ArchiveOrigin
from tests.compute.cold_cache import instance, kept, layout
from tests.compute.drive import ROOMY, Drive, sampling
from tests.compute.oracle import is_greedy
from tests.compute.payloads import raw, same
from tests.compute.warm_runs import (
    ANSWER,
    HYBRIDS,
    LIMITS,
    ONE_OF_EACH_KIND,
    PROMPT,
    story,
    tell,
    tiny,
    tokens,
)
from tests.tiny_models import CONFIGS

pytestmark = pytest.mark.usefixtures("either_order")

SIZE = 8
TOLD = PROMPT + ANSWER
AHEAD = 6
# On block boundaries and between them, shorter and longer than the windows of 16 tokens.
LENGTHS = (TOLD, 48, 41, 21)
NAME = "all of its weights"


def fresh(architecture: str, budget: HotBudget = ROOMY) -> Drive:
    return Drive(tiny(architecture), LIMITS, SIZE, budget)


@cache
def teller(architecture: str) -> Drive:
    """An instance that has told the story; nothing is asked of it but archives."""
    drive = fresh(architecture)
    tell(drive, story(architecture, PROMPT))
    return drive


def held_of(
    drive: Drive, prefix: Sequence[int], salt: bytes = b""
) -> list[tuple[Record, PackedArrays]]:
    """What an instance holds of a prefix, as an export finds it."""
    cache = drive.instance.cache
    handle = cache.enter(tuple(prefix), salt, ())
    while handle.reading:
        drive.instance.tiers.recall()
    found = pack_blocks(drive.instance, handle)
    cache.leave(handle)
    return found


def export(drive: Drive, prefix: Sequence[int], salt: bytes = b"") -> bytes:
    about = ArchiveOrigin(NAME, "a model", SIZE, 1_700_000_000)
    parts = archives._make_archive(about, held_of(drive, prefix, salt))
    return b"".join(parts)


def take_in(instance: ModelInstance, data: bytes, salt: bytes = b"") -> int:
    """How many blocks and states of an archive are new."""
    about, found = archives._read_archive(data)
    root, space = instance.cache.root(salt), instance.cache.namespace
    return archives._adopt_blocks(instance, blocks=archives._reroot(found, about.root, root, space))


def reserved(held: Sequence[tuple[Record, PackedArrays]], *, checkpointed: bool) -> int:
    """Up to where a prompt can be restored with these."""
    part = RecordKind.CHECKPOINT if checkpointed else RecordKind.BLOCK
    return max((record.stop for record, _ in held if record.part is part), default=0)


def check_goes_on(
    drive: Drive, name: str, prompt: Sequence[int], cached: int, salt: bytes = b""
) -> None:
    """The answer is the cold one, and the first `cached` tokens of the prompt are not computed."""
    answer = drive.answer(name, prompt, AHEAD, salt=salt)
    assert is_greedy(drive.loaded.model, prompt, answer)
    assert drive.admitted[name].cached == cached
    assert drive.computed[name] == len(prompt) - 1 - cached


# -- out of one instance, into another -------------------------------------------------------


@pytest.mark.parametrize("architecture", CONFIGS)
def test_another_instance_goes_on_where_the_first_one_was(architecture: str) -> None:
    one = teller(architecture)
    checkpointed = layout(one).checkpointed
    for length in LENGTHS:
        prefix = story(architecture, PROMPT).told[:length]
        data, held = export(one, prefix), held_of(one, prefix)
        sizes = {p.nbytes / len(r.tokens) for r, p in held if r.part is RecordKind.BLOCK}
        assert len(sizes) == 1, "of the last block more than its tokens"
        cached = min(reserved(held, checkpointed=checkpointed), length - 1)
        assert checkpointed or cached == length - 1
        assert cached >= 32 or length < 32
        two = fresh(architecture)
        assert take_in(two.instance, data) == len(held)
        assert take_in(two.instance, data) == 0
        assert export(two, prefix) == data, "another bit than the first one had"
        assert two.instance.cache.probe(prefix, b"").cached == cached
        check_goes_on(two, "again", prefix, cached)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_who_parts_from_an_archive_uses_what_it_shares(architecture: str) -> None:
    """Beside others who compute, in an instance that has a part of it already."""
    one, told = teller(architecture), story(architecture, PROMPT).told
    two = fresh(architecture)
    two.answer("known", told[:18], 1)
    two.add("stranger", tokens("stranger", 40), sampling(30))
    two.step()
    data = export(one, told)
    added = take_in(two.instance, data)
    assert 0 < added < len(held_of(one, told))
    asked = {f"{at}": (*told[:at], *tokens(at, 9)) for at in (TOLD, 61, 40, 35)}
    for name, prompt in asked.items():
        two.add(name, prompt, sampling(AHEAD))
        two.step()
    two.finish()
    for name, prompt in asked.items():
        assert is_greedy(two.loaded.model, prompt, two.answers[f"{name}/0"])
        cached = two.admitted[name].cached
        assert cached <= 64 if layout(two).checkpointed else cached == min(int(name), 64)
    assert two.admitted[str(TOLD)].cached == 64


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_an_archive_of_one_tenant_serves_the_one_who_took_it_in(architecture: str) -> None:
    told = story(architecture, PROMPT)
    one, two = fresh(architecture), fresh(architecture)
    one.answer("told", told.prompt, ANSWER, salt=b"mine")
    assert held_of(one, told.told) == []
    data = export(one, told.told, b"mine")
    assert data == export(teller(architecture), told.told), "it says whose it was"
    assert take_in(two.instance, data, b"theirs") >= 8
    check_goes_on(two, "nobody", told.told, 0)
    check_goes_on(two, "mine", told.told, 0, b"mine")
    check_goes_on(two, "theirs", told.told, 64, b"theirs")


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("through", [False, True])
def test_what_only_files_have_goes_out_and_what_came_in_goes_to_files(
    architecture: str, through: bool, tmp_path: Path
) -> None:
    told = story(architecture, PROMPT)
    with instance(tmp_path / "one", architecture) as drive:
        tell(drive, told)
    with instance(tmp_path / "one", architecture) as drive:
        data = export(drive, told.told)
        assert drive.cold is not None and drive.cold.stats.read > 7
    assert data == export(teller(architecture), told.told)
    with instance(tmp_path / "two", architecture, write_through=through) as drive:
        assert take_in(drive.instance, data) > 7
        hot = kept(drive)
        assert drive.cold is not None
        assert {entry.key for entry in drive.cold.index.entries()} == (
            set(hot) if through else set()
        )
    with instance(tmp_path / "two", architecture) as drive:
        check_goes_on(drive, "again", told.told, 64)
        assert all(same(hot[key], payload) for key, payload in kept(drive).items() if key in hot)


@pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)
def test_an_archive_larger_than_the_memory_is_taken_in_as_far_as_it_goes(architecture: str) -> None:
    one, told = teller(architecture), story(architecture, PROMPT).told
    data = export(one, told)
    full = one.instance.cache.index.nbytes
    for share in (0.0, 0.3, 0.7):
        room = int(share * full)
        two = fresh(architecture, HotBudget(room, room))
        take_in(two.instance, data)
        two.instance.check_invariants()
        assert two.instance.cache.index.nbytes <= room
        assert two.instance.cache.probe(told, b"").cached <= 64 * (share > 0)
        answer = two.answer("x", told, AHEAD)
        assert is_greedy(two.loaded.model, told, answer)


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_a_prompt_with_a_state_at_its_very_end_is_of_use_to_itself(architecture: str) -> None:
    """The last token is computed in any case, and so a state after it is of use to others only."""
    prompt = tokens("ends", 40)
    one, two = fresh(architecture), fresh(architecture)
    one.answer("itself", prompt, 2)
    one.answer("next turn", [*prompt, *tokens("next", 12)], 2, checkpoints_at=(40,))
    take_in(two.instance, export(one, prompt))
    check_goes_on(two, "itself", prompt, 39)


# -- a part of a block -------------------------------------------------------------------


def leaves_of(payload: Payload) -> list[list[tuple[mx.Dtype, tuple[int, ...], bytes]]]:
    return [
        [(array.dtype, array.shape, raw(mx.contiguous(array))) for array in arrays]
        for arrays in payload.leaves()
    ]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_first_tokens_of_a_block_are_those_of_a_shorter_one(architecture: str) -> None:
    """Also where a ring has turned, and where it is yet to fill."""
    model = tiny(architecture).model
    codec = BlockCodec.of(model, SIZE)
    assert codec is not None
    caches = cache_ops.new_caches(model)
    sequence, at = tokens(architecture, 40), 0
    for stop in (8, 21, 40):
        model(mx.array([sequence[at:stop]]), cache=caches)
        row, start = CacheRow(0, stop), stop - SIZE
        whole = codec.cut_block(caches, row, start, stop)
        assert whole.first(SIZE) is whole
        for count in range(1, SIZE):
            part = whole.first(count)
            cut = codec.cut_block(caches, row, start, start + count).detached()
            assert part.places == cut.places and leaves_of(part) == leaves_of(cut)
            assert part.nbytes * SIZE == whole.nbytes * count
        at = stop
