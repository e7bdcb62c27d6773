"""Quantised caches in every tier: rebuilt from memory, from files of the same process and after a
restart they are of the same class and the same bits, and the answers are those of a cold model.
"""

from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.codecs.registry import leaves
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.core.prefix_cache.eviction import HotBudget
from tests.compute.cold_cache import Join, check_joins, instance, joins, kept
from tests.compute.drive import ROOMY, Drive
from tests.compute.kv.every_scheme import bytes_of_token
from tests.compute.kv.models import HEAD_DIM
from tests.compute.kv.pairs import every_pair, model_of
from tests.compute.oracle import is_greedy
from tests.compute.warm_runs import tokens

PROMPT = tokens("tiers", 61)
ANSWER = 9
WIDTH = 4  # bytes of a number that the tiny models compute with


def check_rebuilt(found: list[Join], scheme: Scheme, heads: list[int]) -> None:
    """Each layer's cache is of the scheme's class and takes what the format says, within 5 %."""
    assert found
    for join in found:
        assert [kind for kind, _ in join.packed] == [type(PackedKVCache(scheme))] * len(heads)
        for (_, nbytes), count in zip(join.packed, heads, strict=True):
            expected = bytes_of_token(scheme, count, HEAD_DIM, WIDTH)
            assert nbytes == pytest.approx(expected, rel=0.05)


def ask(drive: Drive, name: str, first: list[int]) -> list[Join]:
    """The same prompt again must be mostly cached and get the same answer; its restores."""
    joins(drive).clear()
    answer = drive.answer(name, PROMPT, ANSWER)
    assert answer == first
    assert drive.admitted[name].cached >= 32
    return list(joins(drive))


@every_pair
def test_what_comes_back_from_any_tier_is_what_was_there(
    architecture: str, scheme: Scheme, tmp_path: Path
) -> None:
    loaded = model_of(architecture, scheme.name)
    probe = cache_ops.new_caches(loaded.model)
    loaded.model(mx.array([PROMPT[:4]]), cache=probe)
    heads = [leaf.keys[0].shape[1] for leaf in leaves(probe) if isinstance(leaf, PackedKVCache)]
    with instance(tmp_path, loaded) as drive:
        first = drive.answer("first", PROMPT, ANSWER)
        assert is_greedy(loaded.model, PROMPT, first)
        hot = kept(drive)
        check_rebuilt(ask(drive, "hot", first), scheme, heads)
        hot |= kept(drive)
        drive.instance.cache.budget = HotBudget(0, 0, buffers=0)
        drive.answer("all-out", tokens("stranger", 3), 1)
        assert not len(drive.hot)
        drive.instance.cache.budget = ROOMY
        cold = ask(drive, "cold", first)
        check_rebuilt(cold, scheme, heads)
        assert check_joins(drive, hot, cold) >= 2
    with instance(tmp_path, loaded) as again:
        restarted = ask(again, "restarted", first)
        check_rebuilt(restarted, scheme, heads)
        assert check_joins(again, hot, restarted) >= 2
