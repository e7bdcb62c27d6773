"""How memory is shared out between weights, the prefix cache and the rest."""

import pytest

from omlx_server.core.memory import checkpoint_bytes, hot_cache_bytes

GB = 10**9


@pytest.mark.parametrize(
    ("usable", "weights", "hot"),
    [(24 * GB, 4 * GB, 10 * GB), (12 * GB, 12 * GB, 0.6 * GB), (12 * GB, 40 * GB, 0.6 * GB)],
)
def test_the_cache_gets_half_of_what_the_weights_leave_and_never_nothing(
    usable: int, weights: int, hot: float
) -> None:
    assert hot_cache_bytes(usable, weights) == hot
    assert checkpoint_bytes(int(hot)) == hot // 4
