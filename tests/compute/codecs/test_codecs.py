"""Join laws of the codecs, and contracts of mlx-lm's cache classes that they stand on.

A cache that was cut into blocks and joined again is the cache: the same numbers, the same next
step, whatever the block size, the boundary and the row it was cut from.
"""

import ast
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models import cache as mlx_lm_cache
from mlx_lm.models.deepseek_v41 import LayerCache

from omlx_server import compute
from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.special import InclusiveRing
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec, spare_tail
from omlx_server.compute.codecs.registry import BY_CLASS, codec_of, codecs_for, leaves
from omlx_server.compute.kv.caches import PackedKV, PackedKVCache
from omlx_server.compute.kv.latent import GroupedMaskKVCache
from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.plain import Plain
from omlx_server.compute.payload import BlockCodec
from omlx_server.core.blocks.block import LayerKind
from omlx_server.core.memory.kv import GROWTH
from omlx_server.core.speculation.methods import DraftVerification
from tests.arrays import drawn_tokens, plain
from tests.sweeps import sweep
from tests.tiny_models import CONFIGS, load_tiny

HEADS, WIDTH = 2, 32
WINDOW = 16

MAKERS: dict[str, Callable[[], Cache]] = {
    "kv": mlx_lm_cache.KVCache,
    "rotating": lambda: mlx_lm_cache.RotatingKVCache(max_size=WINDOW),
    "quantized": lambda: PackedKVCache(Affine(4, 32)),
    "chunked": lambda: mlx_lm_cache.ChunkedKVCache(WINDOW),
}
every_cache = pytest.mark.parametrize("name", MAKERS)


def token_arrays(seed: int, start: int, stop: int) -> tuple[mx.array, mx.array]:
    """Keys and values of tokens [start, stop): every token has its own."""
    return drawn_tokens(seed, start, stop, HEADS, WIDTH)


def feed(cache: Cache, seed: int, start: int, stop: int) -> Arrays:
    """Put tokens into a solo cache as a model would; what attention would see."""
    if isinstance(cache, mlx_lm_cache.ChunkedKVCache):
        cache.maybe_trim_front()
    keys, values = cache.update_and_fetch(*token_arrays(seed, start, stop))
    quantized = isinstance(keys, PackedKV)
    seen = (*keys.arrays, *values.arrays) if quantized else (keys, values)
    mx.eval(seen)
    return seen


def seen_tokens(arrays: Arrays) -> list[object]:
    """What attention sees, whatever its order: attention does not care."""
    by_token = [a.swapaxes(-2, 0).reshape(a.shape[-2], -1).tolist() for a in arrays]
    return sorted(zip(*by_token, strict=True))


def cut_all(codec: Codec, cache: Cache, stops: Sequence[int], size: int, seed: int) -> list[Arrays]:
    """Feed up to each of `stops` and cut the blocks that are complete, and the tail, as they
    pass."""
    parts, at = [], 0
    for stop in stops:
        feed(cache, seed, at, stop)
        for end in range((at // size + 1) * size, stop + 1, size):
            parts.append(codec.cut(cache, CacheRow(0, stop), end - size, end))
        at = stop
    if at % size:
        parts.append(codec.cut(cache, CacheRow(0, at), at - at % size, at))
    mx.eval(parts)
    return parts


def trim(parts: Sequence[Arrays], size: int, stop: int) -> list[Arrays]:
    kept = list(parts[: (stop - 1) // size + 1])
    kept[-1] = tuple(a[..., : stop - (len(kept) - 1) * size, :] for a in kept[-1])
    return kept


@pytest.mark.parametrize(("name", "size"), sweep(MAKERS, [4, 8, 16]))
def test_joined_blocks_are_the_cache_at_every_boundary(name: str, size: int) -> None:
    """Chunks of any length, then decode until rings have wrapped more than once."""
    rng = random.Random(size)
    fresh = MAKERS[name]
    codec = codec_of(fresh())
    stops = [5, 24, 25, 60, *range(61, 61 + 2 * WINDOW + 3)]
    parts = cut_all(codec, fresh(), stops, size, seed=1)
    for stop in range(1, stops[-1]):
        joined = codec.join(fresh(), trim(parts, size, stop), stop)
        cold = fresh()
        feed(cold, 1, 0, stop)
        width = rng.choice([1, 1, 3, 20])
        warm_sees = feed(joined, 1, stop, stop + width)
        cold_sees = feed(cold, 1, stop, stop + width)
        if width > 1:
            reach = warm_sees[0].shape[-2]
            assert [plain(a) for a in warm_sees] == [plain(a[..., -reach:, :]) for a in cold_sees]
            assert reach >= min(stop, WINDOW - 1) + width
        else:
            assert seen_tokens(warm_sees) == seen_tokens(cold_sees)
        assert joined.offset == cold.offset == stop + width


@pytest.mark.parametrize("name", ["kv", "quantized"])
@pytest.mark.parametrize("length", [GROWTH - 1, GROWTH, GROWTH + 1])
def test_a_buffer_may_be_exactly_full(name: str, length: int) -> None:
    cache, whole = MAKERS[name](), MAKERS[name]()
    feed(cache, 1, 0, length - 1)
    feed(cache, 1, length - 1, length)
    seen = feed(whole, 1, 0, length)
    cut = codec_of(cache).cut(cache, CacheRow(0, length), length - 5, length)
    assert [plain(a) for a in cut] == [plain(a[..., length - 5 : length, :]) for a in seen]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", ["kv", "rotating"])
def test_a_row_of_a_batch_is_cut_without_its_padding(name: str, wrapped: bool) -> None:
    lengths = [3, 30, 17, 16]
    rows = [MAKERS[name]() for _ in lengths]
    for seed, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        feed(row, seed, 0, length)
    batch = type(rows[0]).merge(rows)
    steps = WINDOW + 5 if wrapped else 2
    for step in range(steps):
        columns = [token_arrays(s, n + step, n + step + 1) for s, n in enumerate(lengths)]
        keys, values = (mx.concatenate(list(a)) for a in zip(*columns, strict=True))
        mx.eval(batch.update_and_fetch(keys, values))
    codec = codec_of(batch)
    for seed, length in enumerate(lengths):
        total = length + steps
        start = max(0, total - 8)
        cut = codec.cut(batch, CacheRow(seed, total), start, total)
        assert [plain(a) for a in cut] == [plain(a) for a in token_arrays(seed, start, total)]


def test_tokens_that_left_a_ring_are_not_cut() -> None:
    for name in ("rotating", "chunked"):
        cache = MAKERS[name]()
        codec = codec_of(cache)
        feed(cache, 1, 0, 40)
        for token in range(40, 45):
            feed(cache, 1, token, token + 1)
        with pytest.raises(IndexError):
            codec.cut(cache, CacheRow(0, 45), 8, 16)


def test_recurrent_state_comes_back_slot_by_slot() -> None:
    cache = mlx_lm_cache.ArraysCache(size=3)
    cache[0] = mx.random.normal((4, 3, 8))
    cache[2] = mx.random.normal((4, 2, 5, 5))
    codec = codec_of(cache)
    assert codec.kind is LayerKind.CHECKPOINT
    for row in range(4):
        joined = codec.join(
            mlx_lm_cache.ArraysCache(size=3), [codec.cut(cache, CacheRow(row, 9), 0, 9)], 9
        )
        assert joined[1] is None
        for slot in (0, 2):
            assert mx.array_equal(joined[slot], cache[slot][row : row + 1])


def test_a_restored_state_may_be_changed_without_changing_the_stored_one() -> None:
    cache = mlx_lm_cache.ArraysCache(size=1)
    cache[0] = mx.ones((1, 4))
    codec = codec_of(cache)
    part = codec.cut(cache, CacheRow(0, 1), 0, 1)
    joined = codec.join(mlx_lm_cache.ArraysCache(size=1), [part], 1)
    joined[0][:] = 7
    cache[0][:] = 9
    assert plain(codec.join(mlx_lm_cache.ArraysCache(size=1), [part], 1)[0]) in ([[1.0] * 4],)


@pytest.mark.parametrize("name", ["kv", "quantized", "chunked"])
def test_a_joined_cache_has_room_for_the_next_tokens(name: str) -> None:
    """The first decode step after a restore does not copy the layer once more."""
    codec = codec_of(MAKERS[name]())
    for stop in (4, 16, GROWTH - 1, GROWTH):
        parts = cut_all(codec, MAKERS[name](), [stop], 16, seed=2)
        joined = codec.join(MAKERS[name](), parts, stop)
        places = (joined.keys if name != "quantized" else joined.keys[0]).shape[2]
        held = min(stop, WINDOW) if name == "chunked" else stop
        assert held < places == held + spare_tail(held) and places % GROWTH == 0


def test_the_format_tells_caches_apart_that_do_not_fit() -> None:
    different = [
        mlx_lm_cache.KVCache(),
        mlx_lm_cache.RotatingKVCache(max_size=16),
        mlx_lm_cache.RotatingKVCache(max_size=32),
        PackedKVCache(Affine(4, 32)),
        PackedKVCache(Affine(8, 32)),
        PackedKVCache(Affine(4, 64)),
        mlx_lm_cache.ChunkedKVCache(16),
        mlx_lm_cache.ArraysCache(size=1),
        mlx_lm_cache.ArraysCache(size=2),
    ]
    assert len({codec_of(cache).describe(cache) for cache in different}) == len(different)


def test_caches_without_a_codec() -> None:
    assert codecs_for([mlx_lm_cache.RotatingKVCache(max_size=16, keep=4)]) is None
    assert codecs_for([mlx_lm_cache.ConcatenateKVCache()]) is None
    assert codecs_for([mlx_lm_cache.QuantizedKVCache()]) is None


@pytest.mark.parametrize(
    ("cache", "batches", "groups", "recurrent", "verifies"),
    [
        (mlx_lm_cache.KVCache(), True, True, False, DraftVerification.ALONE),
        (GroupedMaskKVCache(Plain()), True, True, False, DraftVerification.ALWAYS),
        (PackedKVCache(Affine(4, 32)), True, True, False, DraftVerification.ALWAYS),
        (mlx_lm_cache.RotatingKVCache(max_size=16), True, True, False, DraftVerification.ALWAYS),
        (
            mlx_lm_cache.RotatingKVCache(max_size=16, keep=4),
            False,
            True,
            False,
            DraftVerification.ALWAYS,
        ),
        (InclusiveRing(16), True, False, False, DraftVerification.NEVER),
        (mlx_lm_cache.ArraysCache(size=1), True, True, True, DraftVerification.ALONE),
        (mlx_lm_cache.ChunkedKVCache(16), False, True, False, DraftVerification.ALONE),
        (LayerCache(16), False, True, False, DraftVerification.ALONE),
        (mlx_lm_cache.ConcatenateKVCache(), False, True, False, DraftVerification.NEVER),
        (mlx_lm_cache.QuantizedKVCache(), False, True, False, DraftVerification.NEVER),
    ],
    ids=lambda value: (
        str(value) if isinstance(value, bool | DraftVerification) else type(value).__name__
    ),
)
def test_what_rows_of_a_class_may_do(
    cache: Cache, batches: bool, groups: bool, recurrent: bool, verifies: DraftVerification
) -> None:
    """A list of caches, or a model with more of them, can do what each of its caches can do."""
    for caches in (
        [cache],
        [mlx_lm_cache.CacheList(cache)],
        [mlx_lm_cache.KVCache(), cache, mlx_lm_cache.KVCache()],
    ):
        assert cache_ops.can_batch(caches) == batches
        assert cache_ops.can_group(caches) == groups
        assert cache_ops.is_recurrent(caches) == recurrent
        beside = [codec_of(leaf).takes_out_by_row for leaf in leaves(caches)]
        assert cache_ops.draft_verification(caches) == (
            verifies if all(beside) else verifies & DraftVerification.ALONE
        )


def test_nobody_but_the_codecs_tells_caches_apart_by_their_class() -> None:
    """Two files put other classes in the place of mlx-lm's own."""
    known = {kind.__name__ for kind in BY_CLASS} | {"CacheList"}
    root = Path(compute.__path__[0])
    paths = (path for path in root.rglob("*.py") if path.parent.name != "codecs")
    found = {str(path.relative_to(root)) for path in paths if known & classes_asked_for(path)}
    assert found == {"architectures/special.py", "quantise.py"}


def classes_asked_for(path: Path) -> set[str]:
    """All names in what a file compares the class of something with."""
    asked: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked.append(node.args[1])
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).startswith("type("):
            asked += node.comparators
    return {name for expression in asked for name in re.findall(r"\w+", ast.unparse(expression))}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_architecture_has_codecs(architecture: str) -> None:
    model = load_tiny(architecture).model
    codec = BlockCodec.of(model, 64)
    assert codec is not None
    windowed = LayerKind.WINDOW in codec.layout.kinds
    assert codec.layout.block_size == (16 if windowed else 64)
    assert codec.layout.window == (16 if windowed else 0)


# -- contracts: what the codecs take for granted of mlx-lm -------------------------------


def test_contract_kv() -> None:
    """`offset` tokens, at [..., :offset, :] of buffers that grow by a step."""
    cache = mlx_lm_cache.KVCache()
    assert (cache.offset, cache.keys, cache.step) == (0, None, GROWTH)
    feed(cache, 1, 0, 5)
    assert (cache.offset, cache.keys.shape) == (5, (1, HEADS, GROWTH, WIDTH))
    assert [type(s) for s in cache.state] == [mx.array, mx.array, int]
    before = cache.keys.shape
    feed(cache, 1, 5, GROWTH)
    assert cache.keys.shape == before and cache.offset == GROWTH


def test_contract_batch_kv() -> None:
    """Rows are right-justified: token length-1 of every row is at `_idx` - 1."""
    rows = [mlx_lm_cache.KVCache() for _ in range(2)]
    for seed, length in enumerate((2, 5)):
        feed(rows[seed], seed, 0, length)
    batch = mlx_lm_cache.KVCache.merge(rows)
    assert type(batch) is mlx_lm_cache.BatchKVCache
    assert (batch._idx, plain(batch.left_padding)) == (5, [3, 0])
    for seed, length in enumerate((2, 5)):
        newest = token_arrays(seed, length - 1, length)[0][0]
        assert mx.array_equal(batch.keys[seed, :, 4:5], newest)
    assert batch.extract(0).offset == 2


def test_contract_rotating() -> None:
    """Temporal order and longer than the window after a prefill; a ring with its newest token at
    `_idx` - 1 in decode."""
    cache = mlx_lm_cache.RotatingKVCache(max_size=WINDOW)
    assert (cache.keep, cache.max_size, cache._idx, cache.offset) == (0, WINDOW, 0, 0)
    feed(cache, 1, 0, 40)
    assert (cache._idx, cache.keys.shape[2], cache.offset) == (40, 40, 40)
    feed(cache, 1, 40, 43)
    assert (cache._idx, cache.keys.shape[2]) == (WINDOW - 1 + 3,) * 2
    for token in range(43, 43 + WINDOW + 3):
        feed(cache, 1, token, token + 1)
        assert mx.array_equal(
            cache.keys[:, :, cache._idx - 1 : cache._idx], token_arrays(1, token, token + 1)[0]
        )
    assert (cache.keys.shape[2], cache._idx) == (WINDOW, 3)
    assert len(cache.state) == 6


def test_contract_batch_rotating() -> None:
    """The same for each row: one `_idx` for all, `rotated` once the ring has wrapped."""
    rows = [mlx_lm_cache.RotatingKVCache(max_size=WINDOW) for _ in range(2)]
    for seed, length in enumerate((3, 30)):
        feed(rows[seed], seed, 0, length)
    batch = mlx_lm_cache.RotatingKVCache.merge(rows)
    assert type(batch) is mlx_lm_cache.BatchRotatingKVCache
    assert (batch._idx, batch.keys.shape[2], batch.rotated) == (WINDOW, WINDOW, False)
    for step in range(3):
        columns = [token_arrays(s, n + step, n + step + 1)[0] for s, n in enumerate((3, 30))]
        mx.eval(batch.update_and_fetch(mx.concatenate(columns), mx.concatenate(columns)))
        for row, column in enumerate(columns):
            assert mx.array_equal(batch.keys[row, :, batch._idx - 1], column[0, :, 0])
    assert (batch._idx, batch.rotated) == (3, True)


def test_contract_chunked() -> None:
    """Tokens [start_position, offset) from the start of the buffer; trimmed before a step."""
    cache = mlx_lm_cache.ChunkedKVCache(WINDOW)
    feed(cache, 1, 0, 40)
    assert (cache.start_position, cache.offset) == (0, 40)
    feed(cache, 1, 40, 41)
    assert (cache.start_position, cache.offset, cache.chunk_size) == (24, 41, WINDOW)
    assert mx.array_equal(cache.keys[:, :, :1], token_arrays(1, 24, 25)[0])
    assert not cache_ops.can_batch([cache])


def test_contract_arrays() -> None:
    """A list of slots, batch axis first, None legal; `extract` gives slices."""
    cache = mlx_lm_cache.ArraysCache(size=2)
    assert cache.cache == [None, None] and cache.empty()
    cache[0] = mx.zeros((2, 3))
    slots, left_padding, lengths = cache.state
    assert slots is cache.cache and left_padding is None and lengths is None
    assert cache_ops.can_batch([cache]) and cache_ops.is_recurrent([cache])


def test_contract_cache_list() -> None:
    inner = mlx_lm_cache.ArraysCache(size=2), mlx_lm_cache.KVCache()
    outer = mlx_lm_cache.CacheList(*inner)
    assert tuple(outer.caches) == inner
    assert list(leaves([outer, inner[1]])) == [*inner, inner[1]]
    assert cache_ops.is_recurrent([outer])
    assert not cache_ops.is_recurrent([mlx_lm_cache.CacheList(mlx_lm_cache.KVCache())])


def test_members_of_a_cache_list_are_padded_and_kept_like_others() -> None:
    """Rows of 3 and 7 tokens are read in one forward; then one of the rows goes."""

    class Taker:
        def __call__(self, tokens: mx.array, cache: list[Cache]) -> mx.array:
            for member in cache[0].caches:
                columns = [token_arrays(seed, 0, 7) for seed in plain(tokens[:, 0])]
                member.update_and_fetch(
                    *(mx.concatenate(list(a)) for a in zip(*columns, strict=True))
                )
            return tokens

    lists = [mlx_lm_cache.CacheList(*(mlx_lm_cache.KVCache() for _ in range(2))) for _ in range(3)]
    batch = [lists[0].merge(lists)]
    tokens = mx.array([[seed] * 7 for seed in (5, 6, 7)])
    cache_ops.forward_padded(Taker(), tokens, [3, 7, 5], batch)
    cache_ops.keep_rows(batch, [2, 0])
    for member in batch[0].caches:
        for index, (seed, length) in enumerate([(7, 5), (5, 3)]):
            cut = codec_of(member).cut(member, CacheRow(index, length), 0, length)
            assert [plain(a) for a in cut] == [plain(a) for a in token_arrays(seed, 0, length)]


def test_contract_merge_copies() -> None:
    """Solo caches stay usable after they went into a batch."""
    solo = mlx_lm_cache.KVCache()
    feed(solo, 1, 0, 5)
    batch = mlx_lm_cache.KVCache.merge([solo, solo])
    batch.update_and_fetch(mx.ones((2, HEADS, 1, WIDTH)), mx.ones((2, HEADS, 1, WIDTH)))
    mx.eval(batch.keys)
    assert solo.offset == 5
    assert mx.array_equal(feed(solo, 1, 5, 6)[0], token_arrays(1, 0, 6)[0])
