"""What goes over the network for a token is what docs/cluster.md says."""

import psutil
import pytest

from tests.cluster.group import Group
from tests.cluster.scenarios import Scenario
from tests.tiny_models import CONFIGS

FEW, MORE = 4, 20
HIDDEN, LAYERS = (int(CONFIGS["llama"][key]) for key in ("hidden_size", "num_hidden_layers"))
BYTES = 4  # of a number of the hidden states and of a token
OF_LINKS = 200
"""The most bytes that rank 0 tells each other rank for a token, signs of life included."""

pytestmark = pytest.mark.skipif(not psutil.LINUX, reason="Linux counts the bytes of a connection")


def theory(ranks: int) -> float:
    """Bytes that each rank sends into the ring for a token of one row, and receives. A sum of n
    numbers takes 2 (N - 1) / N n of them. There are two sums of the hidden states in each layer,
    and one of the token itself."""
    numbers = 2 * LAYERS * HIDDEN + 1
    return 2 * (ranks - 1) / ranks * numbers * BYTES


def per_token(ranks: Group, heads: int) -> dict[str, float]:
    """Bytes that rank 0 sends and receives for a token, by direction and kind of connection: what a
    longer answer takes more than a short one."""
    found = list[dict[str, int]]()
    for tokens in (FEW, FEW, MORE):
        changes = {"num_attention_heads": heads, "num_key_value_heads": heads}
        reply = ranks.reply(Scenario("llama", tokens=tokens, changes=changes))
        assert len(reply.answers["r"]) == tokens
        ways = {"sent": reply.sent, "received": reply.received}
        found.append({f"{way} {kind}": n for way, by in ways.items() for kind, n in by.items()})
    none, short, long = found
    return {
        name: (long[name] - short[name] - (short[name] - none[name])) / (MORE - FEW)
        for name in none
    }


def check(ranks: Group, size: int) -> None:
    found = per_token(ranks, heads=4)
    for way in ("sent", "received"):
        assert found[f"{way} ring"] == pytest.approx(theory(size), rel=0.02), found
        assert found[f"{way} links"] <= (size - 1) * OF_LINKS, found
    assert found["sent links"] > 0


def test_two_ranks_send_what_their_sums_need(two: Group) -> None:
    check(two, 2)
