"""Masks of constraints, and work on several of them side by side."""

import threading
from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.sampling.logits import allowed, side_by_side
from tests.compute.sampling.live import Fixed


def test_tokens_beyond_a_mask_are_not_allowed() -> None:
    """A mask of no, one and three words, for 70 logits."""
    masks = [b"", b"\5\0\0\0", b"\0\0\0\0\1\0\0\0\xff\xff\xff\xff"]
    logits = np.array(allowed(mx.zeros((3, 70)), [Fixed(mask) for mask in masks]))
    there = [np.flatnonzero(row == 0).tolist() for row in logits]
    assert there == [[], [0, 2], [32, *range(64, 70)]]


def test_results_come_in_the_order_of_the_work() -> None:
    assert side_by_side([partial(pow, number, 2) for number in range(100)]) == [
        number**2 for number in range(100)
    ]
    assert side_by_side(list[partial[int]]()) == []


def test_two_pieces_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2)
    assert sorted(side_by_side([partial(meeting.wait, 30)] * 2)) == [0, 1]


def test_one_piece_runs_on_the_thread_that_asks() -> None:
    assert side_by_side([threading.get_ident]) == [threading.get_ident()]


def test_an_error_is_raised_when_no_piece_is_at_work_any_more() -> None:
    begun, ended = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        ended.wait(0.05)
        ended.set()

    def broken() -> None:
        begun.wait(30)
        raise ValueError("broken")

    for work in ([slow, broken], [broken, slow]):
        begun.clear()
        ended.clear()
        with pytest.raises(ValueError, match="broken"):
            side_by_side(work)
        assert ended.is_set()
