"""Tiny models in every pair of KV formats."""

from functools import cache

import pytest

from omlx_server.compute.model.loader import LoadedModel
from tests.compute.kv.every_scheme import FOUR_BITS, SCHEMES, named
from tests.compute.kv.models import ACCEPTED, quantised
from tests.sweeps import sweep

# Every scheme on one model, and one of each kind on every model: of these one a day.
every_pair = pytest.mark.parametrize(
    ("architecture", "scheme"),
    [
        *(("llama", scheme) for scheme in SCHEMES),
        *sweep([name for name in ACCEPTED if name != "llama"], FOUR_BITS),
    ],
    ids=lambda value: value if isinstance(value, str) else named(value),
)


@cache
def model_of(architecture: str, scheme: str) -> LoadedModel:
    return quantised(architecture, next(s for s in SCHEMES if s.name == scheme))
