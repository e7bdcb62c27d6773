"""What `scripts/bench kv` measures, and with which sizes. Values only."""

from dataclasses import dataclass

from scripts.benchmarks.kv_variants import FOUR_BITS, Variant

# The parts of a run, by the names that --only takes.
MEASUREMENTS = ("quality", "bytes", "tokens", "memory", "speed")

_EVERY = (
    *(Variant(scheme, bits) for scheme in ("affine", "rotated") for bits in (2, 3, 4, 6, 8)),
    *(Variant("turboquant", bits) for bits in (2, 2.5, 3, 3.5, 4, 8)),
)


@dataclass(frozen=True, slots=True)
class KvPlan:
    """Sizes of a run in tokens. Quality and bytes are those of `variants`, all else of the
    `compared` ones, which need more time.

    Quality is that over the first `text_tokens` of the texts. A hot tier of `hot_bytes` is filled
    with prompts by models of `fill_layers` layers. The peak of memory is that of a model of
    `peak_layers` layers, over a prompt of `peak_tokens`. Of speed: `decode_steps` steps behind each
    of `contexts`, in batches of each of `streams`; a prompt of `prefill_tokens`, and
    `grouped_tokens` of several prompts in one forward; `repeats` times.
    """

    repeats: int = 5
    only: tuple[str, ...] = MEASUREMENTS
    variants: tuple[Variant, ...] = _EVERY
    compared: tuple[Variant, ...] = FOUR_BITS
    text_tokens: int = 1 << 20
    hot_bytes: int = 64 * 1024 * 1024
    fill_layers: int = 4
    peak_layers: int = 32
    peak_tokens: int = 4000
    contexts: tuple[int, ...] = (200, 4000)
    streams: tuple[int, ...] = (1, 4)
    decode_steps: int = 16
    prefill_tokens: int = 2000
    grouped_tokens: int = 200

    @property
    def judges_quality(self) -> bool:
        """Whether as much is read as the bounds on quality suppose."""
        return self.text_tokens >= 10_000

    @property
    def judges_memory(self) -> bool:
        """Whether keys and values are most of what is in memory."""
        return self.peak_layers >= 32 and self.peak_tokens >= 4000


KV_QUICK = KvPlan(
    repeats=1,
    variants=FOUR_BITS,
    text_tokens=300,
    hot_bytes=4 * 1024 * 1024,
    fill_layers=2,
    peak_layers=4,
    peak_tokens=600,
    contexts=(200,),
    decode_steps=4,
    prefill_tokens=300,
    grouped_tokens=64,
)
