"""For which probes of a model there is time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.core.memory.kv import Decode, PrefillShape

Probe = PrefillShape | Decode
# One before the measured ones.
_RUNS_OF_A_DECODE = 3


@dataclass(slots=True)
class ProbeTime:
    """`left`: seconds for probes; `token_seconds`: how long a token of a short prefill takes."""

    left: float
    token_seconds: float

    def allows(self, probes: Sequence[Probe], runs: int = 1) -> bool:
        """Whether all of the probes fit, each of them run so often."""
        return runs * sum(map(_tokens_of, probes)) * self.token_seconds <= self.left


def _tokens_of(probe: Probe) -> int:
    return probe.rows * (probe.tokens if isinstance(probe, PrefillShape) else _RUNS_OF_A_DECODE)
