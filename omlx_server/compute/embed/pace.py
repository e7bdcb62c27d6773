"""How many tokens an encoder computes together, and in one slice."""

from dataclasses import dataclass

from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.slices import slice_products

_LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PassSize:
    """`group_tokens` tokens are computed together, since fewer would not keep the machine busy.
    `slice_tokens` tokens go through the whole model in one slice; larger batches take several.
    """

    group_tokens: int
    slice_tokens: int

    @classmethod
    def of(cls, layers: int, hidden: int) -> "PassSize":
        """The pace of a transformer of this size on this machine. On the CPU backend larger groups
        outgrow the processor's caches: MiniLM computed 8 % fewer tokens per second in groups of 512
        than in groups of 256."""
        group = 256 if device.is_cpu() else 4096
        tokens = int(slice_products() / (12 * layers * hidden**2))
        return cls(group, min(group, max(_LEAST_TOKENS, tokens)))
