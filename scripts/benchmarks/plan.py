"""What is measured, and with which sizes. Values only."""

from dataclasses import dataclass

# The parts of a run, by the names that --only takes.
MEASUREMENTS = ("throughput", "ttft", "gap", "host")


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run in tokens, and how often it is repeated.

    `streams`: how many requests start at once, one throughput measurement each. While
    `running_streams` of them run, a prompt of `long_tokens` comes in; `chunk_tokens` is the
    server's prefill chunk. The one-layer model makes `host_out` tokens per stream.
    """

    repeats: int = 3
    only: tuple[str, ...] = MEASUREMENTS
    streams: tuple[int, ...] = (1, 4, 8)
    prompt_tokens: int = 165
    out_tokens: int = 32
    ttft_tokens: int = 549
    long_tokens: int = 2000
    running_streams: int = 4
    running_out: int = 40
    chunk_tokens: int = 512
    host_streams: int = 8
    host_out: int = 400


QUICK = Plan(repeats=1, streams=(1, 8), out_tokens=8, long_tokens=1100, running_out=24, host_out=64)
