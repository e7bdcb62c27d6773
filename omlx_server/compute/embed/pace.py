"""How much of a model's work is done at a time."""

from dataclasses import dataclass

from omlx_server.compute.hardware import device

# One slice takes about as long as a chunk of a prompt takes a language model of this size.
_CPU_WEIGHTS = 100e6
_GPU_WEIGHTS = 1e9
_LEAST_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Pace:
    """`group_tokens`: how many are computed together, because fewer would not fill the machine.
    `slice_tokens`: how many go through the whole model in one turn; what is more takes several.
    """

    group_tokens: int
    slice_tokens: int

    @classmethod
    def of(cls, layers: int, hidden: int) -> "Pace":
        """For a transformer of this size on this machine. On the CPU backend larger groups outgrow
        the processor's caches: MiniLM took 8 % less per second in groups of 512 than of 256."""
        group, weights = (256, _CPU_WEIGHTS) if device.is_cpu() else (4096, _GPU_WEIGHTS)
        tokens = int(device.prefill_chunk_tokens() * weights / (12 * layers * hidden**2))
        return cls(group, min(group, max(_LEAST_TOKENS, tokens)))
