"""What `scripts/bench memory` estimates and measures. Values only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omlx_server.core.memory.kv import Decode, PrefillShape
from scripts.benchmarks.kv_variants import PLAIN, Variant


@dataclass(frozen=True, slots=True)
class Join:
    """`arriving` of `rows` come, each with `context` tokens, and all decode."""

    rows: int
    context: int
    arriving: int


@dataclass(frozen=True, slots=True)
class Leave:
    """`leaving` rows go, and `rows` that stay decode."""

    rows: int
    context: int
    leaving: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """A decode of a row behind `context` tokens and `rows` - 1 others behind `short` tokens."""

    rows: int
    context: int
    short: int


@dataclass(frozen=True, slots=True)
class Shared:
    """A decode of `rows` rows that refer to the same `context` tokens, and have `own` behind."""

    rows: int
    context: int
    own: int


@dataclass(frozen=True, slots=True)
class Behind:
    """A forward over `tokens` tokens of one prompt, which refers to `context` stored ones."""

    tokens: int
    context: int
    rows: int = 1


Forward = PrefillShape | Decode | Join | Leave | Mixed | Shared | Behind

STARTER = "starter"
FLAT_RESERVE = 2 << 30
"""What others set aside whatever is computed."""

UNDER, OVER = 0.95, 1.5
WHOLE_UNDER, WHOLE_OVER = 0.95, 1.05
"""Bounds of estimate / measured: of the transient, and of all that the process holds in arrays."""
JUDGED_BYTES = 100 * 10**6
"""Of weights: smaller models are not judged as a whole."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model in one process: a name in `memory_models`, "NAME+NAME" for a model and its draft
    model, or the starter model."""

    model: str
    dtype: str = "float32"
    variant: Variant = PLAIN

    @property
    def name(self) -> str:
        scheme = "" if self.variant == PLAIN else f", {self.variant.name}"
        return f"{self.model} {self.dtype}{scheme}"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Every case with every forward. All are larger than any probe in some way."""

    cases: tuple[Case, ...] = (
        Case("llama"),
        Case("llama", "bfloat16"),
        Case("llama-medium"),
        Case("qwen3"),
        Case("gemma3_text"),
        Case("mixtral"),
        Case("qwen3_next"),
        Case("deepseek_v3"),
        Case("gemma2"),
        Case("llama-medium+llama"),
        Case("qwen3", variant=Variant("affine", 4)),
        Case("qwen3", variant=Variant("turboquant", 4)),
        Case(STARTER),
    )
    forwards: tuple[Forward, ...] = (
        PrefillShape(1, 16, 4000),
        PrefillShape(1, 128, 3968),
        PrefillShape(1, 256, 2048),
        PrefillShape(1, 256, 3840),
        PrefillShape(1, 512, 0),
        PrefillShape(1, 512, 3584),
        PrefillShape(4, 128, 1920),
        PrefillShape(8, 32, 4032),
        Decode(1, 4000),
        Decode(8, 100),
        Decode(8, 2000),
        Decode(8, 4000),
        Decode(8, 4096, grows=True),
        Decode(8, 4000, tokens=5),
        Decode(1, 4000, tokens=17),
        Join(8, 4000, arriving=1),
        Join(8, 4000, arriving=8),
        Leave(8, 4000, leaving=1),
        Mixed(8, 4000, short=200),
        Shared(8, 4096, own=100),
        Behind(256, 4096),
        Behind(16, 4160),
    )


MEMORY_QUICK = MemoryPlan(
    cases=(Case("llama"), Case("qwen3_next"), Case("qwen3", variant=Variant("affine", 4))),
    forwards=(
        PrefillShape(1, 64, 3968),
        PrefillShape(1, 256, 1536),
        PrefillShape(8, 32, 2048),
        Decode(8, 4000),
        Decode(8, 4000, tokens=5),
        Join(8, 2000, arriving=2),
        Mixed(8, 4000, short=200),
        Shared(8, 4096, own=100),
        Behind(256, 4096),
        Behind(16, 4160),
    ),
)


def in_words(forward: Forward) -> str:
    """As it stands in the table."""
    match forward:
        case PrefillShape():
            return f"prefill {forward.rows} x {forward.tokens} behind {forward.context}"
        case Behind():
            return f"prefill {forward.tokens} behind {forward.context} stored"
        case Mixed():
            return f"decode 1 behind {forward.context}, {forward.rows - 1} behind {forward.short}"
        case Shared():
            return f"decode {forward.rows} on the same {forward.context}"
    decode = f"decode {forward.rows} behind {forward.context}"
    match forward:
        case Join():
            return f"{decode}, {forward.arriving} joined"
        case Leave():
            return f"{decode}, {forward.leaving} left"
        case Decode(tokens=tokens) if tokens > 1:
            return f"{decode}, drafts of {tokens - 1}"
    return f"{decode}, grows" if forward.grows else decode


def plain(forward: Forward) -> dict[str, Any]:
    """For JSON."""
    return {"kind": type(forward).__name__, **asdict(forward)}


def parsed(fields: Mapping[str, Any]) -> Forward:
    """What `plain` made."""
    kinds = {kind.__name__: kind for kind in Forward.__args__}
    sizes = {name: value for name, value in fields.items() if name != "kind"}
    forward: Forward = kinds[fields["kind"]](**sizes)
    return forward
