"""Sizes of an encoder's passes."""

from dataclasses import dataclass

from omlx_server.compute.hardware import device
from omlx_server.compute.hardware.device_policy import slice_products

_LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PassSize:
    """`group_tokens` are computed together, `slice_tokens` go through the whole model in one
    slice."""

    group_tokens: int
    slice_tokens: int

    @classmethod
    def of(cls, layers: int, hidden: int) -> "PassSize":
        """Return the sizes for this machine. On the CPU backend larger groups outgrow the
        processor's caches."""
        group = 256 if device.is_cpu() else 4096
        tokens = int(slice_products() / (12 * layers * hidden**2))
        return cls(group, min(group, max(_LEAST_TOKENS, tokens)))
