"""What MLX is told of a group, through files and the environment."""

import json
import os
from pathlib import Path

import mlx.core as mx
import pytest

from omlx_server.compute.cluster.ranks import ConnectedRanks, connect_ranks, mlx_environment
from omlx_server.errors import ModelUnavailable

ADDRESSES = (("10.0.0.1:7000", "10.0.1.1:7001"), ("10.0.0.2:7002",))
RDMA = (((), ("rdma_en2", "rdma_en3")), (("rdma_en5", "rdma_en4"), ()))
NAMES = ("MLX_HOSTFILE", "MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_RANK")


def test_the_ring_is_told_where_all_ranks_are(tmp_path: Path) -> None:
    told = mlx_environment(tmp_path, ADDRESSES, 1, "ring", ())
    assert told.keys() == {"MLX_HOSTFILE", "MLX_RANK"}
    assert told["MLX_RANK"] == "1"
    assert json.loads(Path(told["MLX_HOSTFILE"]).read_text()) == [list(own) for own in ADDRESSES]


def test_jaccl_is_told_all_devices_and_where_rank_0_is(tmp_path: Path) -> None:
    told = mlx_environment(tmp_path, ADDRESSES, 1, "jaccl", RDMA)
    assert told.keys() == {"MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_RANK"}
    assert told["MLX_RANK"] == "1"
    assert told["MLX_JACCL_COORDINATOR"] == "10.0.0.1:7000"
    assert json.loads(Path(told["MLX_IBV_DEVICES"]).read_text()) == [
        [[], ["rdma_en2", "rdma_en3"]],
        [["rdma_en5", "rdma_en4"], []],
    ]


@pytest.mark.skipif(mx.distributed.is_available("jaccl"), reason="MLX has JACCL here")
def test_where_mlx_has_no_jaccl_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what `connect_ranks` sets ends with the test
    with pytest.raises(ModelUnavailable, match=r"rank 0 can't connect with the others: .*jaccl"):
        connect_ranks(ADDRESSES, 0, "jaccl", RDMA)
    assert os.environ["MLX_JACCL_COORDINATOR"] == "10.0.0.1:7000"


def test_rank_0_looks_up_its_own_tokens_whatever_a_broken_ring_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a neighbour was killed MLX's sum held any numbers, and rank 0 read beyond its table of
    embeddings: 4 of 9 kills during an answer ended it."""
    broken = mx.array([1 << 30, -5])
    monkeypatch.setattr(mx.distributed, "all_sum", lambda own, group: broken)
    tokens = mx.array([3, 4])
    group = mx.distributed.init(backend="any")
    assert ConnectedRanks(0, 2, group).shared(tokens).tolist() == [3, 4]
    assert ConnectedRanks(1, 2, group).shared(tokens).tolist() == broken.tolist()
