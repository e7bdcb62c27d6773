"""Few bits cost quality, and a rotation buys it back: on the starter model, over real text.

`scripts/bench kv` measures the same over all of the texts, for all bits.
"""

from pathlib import Path

import pytest

from omlx_server.models.bundled import starter
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from scripts.benchmarks import kv_quality
from scripts.benchmarks.kv_quality import Quality
from scripts.benchmarks.kv_variants import FOUR_BITS, PLAIN, Variant

TOKENS = 450
AFFINE, ROTATED, TURBOQUANT = FOUR_BITS
EIGHT_BITS = Variant("rotated", 8)


@pytest.fixture(scope="module")
def found() -> dict[Variant, Quality]:
    directory: Path = Settings().models.dirs[0]
    model = starter.ensure(STARTER, directory, variant="f32")
    texts = kv_quality.read_texts(model, TOKENS)
    assert [len(text) for text in texts] == [TOKENS]
    return kv_quality.measure(model, texts, (*FOUR_BITS, EIGHT_BITS))


def test_fewer_bits_and_no_rotation_are_further_from_plain_caches(
    found: dict[Variant, Quality],
) -> None:
    kl = {variant: quality.kl for variant, quality in found.items()}
    assert kl[PLAIN] == 0 < kl[EIGHT_BITS] < kl[TURBOQUANT] < kl[ROTATED] < kl[AFFINE] / 2
    assert kl[TURBOQUANT] < kl[AFFINE] / 3
