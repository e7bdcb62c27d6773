"""Models that can't be split over so many ranks."""

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.cluster.splitting import split_model
from omlx_server.errors import ModelUnavailable


class Sharded(nn.Module):
    """A model that knows how it is split, as those of mlx-lm do."""

    def __init__(self, **heads: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.args = SimpleNamespace(**heads)

    def shard(self, group: mx.distributed.Group) -> None:
        """Nothing has to be split here."""


def refused(model: nn.Module, size: int) -> str:
    group: Any = None
    with pytest.raises(ModelUnavailable) as caught:
        split_model(model, ConnectedRanks(0, size, group))
    return caught.value.message


def test_heads_that_do_not_fit_are_named_with_the_numbers_of_ranks_that_do() -> None:
    starter = Sharded(num_attention_heads=9, num_key_value_heads=3)
    assert refused(starter, 2) == "its 9 attention heads can't be shared out to 2 ranks, but to 3"
    many = Sharded(num_attention_heads=32, num_key_value_heads=8)
    assert refused(many, 16).startswith("its 8 heads of keys and values can't be shared out to 16")
    assert refused(many, 16).endswith("but to 2 or 4 or 8")
    assert refused(Sharded(num_attention_heads=8, num_key_value_heads=1), 2).endswith(
        "nor to any other number"
    )


def test_a_family_that_does_not_know_how_is_named() -> None:
    assert "models can't be split over machines" in refused(nn.Linear(2, 2), 2)
