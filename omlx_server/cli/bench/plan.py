"""What is measured, and how long that may take. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths in tokens, times in seconds. What the time does not allow is left out, the long and
    the many first, or measured less often."""

    seconds: float = 60.0
    repeats: int = 3
    lengths: tuple[int, ...] = (128, 512, 2048, 8192)
    first_share: float = 0.45
    streams: tuple[int, ...] = (1, 2, 4, 8)
    stream_tokens: int = 64
    out_tokens: int = 64
    least_out_tokens: int = 8
    decode_share: float = 0.35
    turns: int = 4
    turn_tokens: int = 256
    turn_out: int = 16
