"""Masks of rows that obey a constraint, and parallel work on several constraints."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omlx_server.core.request import Constraint

T = TypeVar("T")

_NEVER = float("-inf")
_THREADS = max(2, min(4, os.cpu_count() or 1))


def side_by_side(work: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of pieces of work on some threads; they touch no array. Raises what a
    piece raised, once none runs."""
    waiting, results = deque(range(len(work))), dict[int, T]()

    def do_pieces() -> None:
        while waiting:
            try:
                number = waiting.popleft()
            except IndexError:
                return  # another thread took it
            results[number] = work[number]()

    helpers = [_pool().submit(do_pieces) for _ in range(min(_THREADS, len(work)) - 1)]
    try:
        do_pieces()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[number] for number in range(len(work))]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, _THREADS - 1), thread_name_prefix="constraints")


def allowed(logits: mx.array, constraints: Sequence[Constraint]) -> mx.array:
    """Return logits f32 [R, V], -inf where a row's constraint forbids."""
    vocab = logits.shape[1]
    words = [_mask_words(constraint.mask(), vocab) for constraint in constraints]
    masks = mx.array(np.stack(words))
    bits = (masks[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    permitted = bits.reshape(len(constraints), -1)[:, :vocab] == 1
    return mx.where(permitted, logits, _NEVER)


def allows(mask: bytes, token: int) -> bool:
    """Return whether a mask has the bit of a token."""
    byte = token // 8  # words are little-endian
    return byte < len(mask) and bool(mask[byte] >> token % 8 & 1)


def _mask_words(mask: bytes, vocab: int) -> npt.NDArray[np.uint32]:
    """Return the mask's words for `vocab` tokens; those beyond its end are forbidden."""
    nbytes = -(-vocab // 32) * 4
    return np.frombuffer(mask[:nbytes].ljust(nbytes, b"\0"), dtype="<u4")
