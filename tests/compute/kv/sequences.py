"""Sequences of random tokens, and what refers to them."""

from typing import Any

import mlx.core as mx

from omlx_server.compute.kv.spans import Runs, Segment

HEADS, WIDTH = 2, 64
Tokens = tuple[mx.array, mx.array]


def tokens(seed: int, start: int, stop: int) -> Tokens:
    """Keys and values of tokens [start, stop) of a sequence."""
    shape = 2, 1, HEADS, 512, WIDTH
    both = mx.random.normal(shape, key=mx.random.key(seed))[..., start:stop, :]
    return both[0], both[1]


def behind(*pieces: Tokens) -> Tokens:
    keys, values = (mx.concatenate(list(side), axis=2) for side in zip(*pieces, strict=True))
    return keys, values


def fed(cache: Any, new: Tokens) -> Any:
    if new[0].shape[2]:
        cache.update_and_fetch(*new)
        mx.eval(cache.state)
    return cache


def segment(runs: Runs, cache: Any, start: int, stop: int, row: int = 0) -> Segment:
    return Segment(runs.of((cache.strip(row),)), start, stop)


def in_rows(*members: Tokens) -> Tokens:
    """New tokens of several rows."""
    keys, values = (mx.concatenate(list(side)) for side in zip(*members, strict=True))
    return keys, values
