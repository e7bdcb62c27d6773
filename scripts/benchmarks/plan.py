"""What is measured, and with which sizes. Values only."""

from dataclasses import dataclass

# The parts of a run, by the names that --only takes.
MEASUREMENTS = ("throughput", "ttft", "gap", "cache", "cold", "host")
# A question and the template around it have fewer.
QUESTION_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run in tokens, and how often it is repeated.

    `streams`: how many requests start at once, one throughput measurement each. While
    `running_streams` of them run, a prompt of `long_tokens` comes in; `chunk_tokens` is the
    server's prefill chunk (0: its default). The one-layer model makes `host_out` tokens per stream.

    Of the cache: a prompt of `repeat_tokens` is asked again `repeat_again` times, then one that
    shares its first `shared_tokens`; `turns` grow to `turns_tokens`; `together` requests start at
    once on a prefix of `prefix_tokens`. `cache_out` tokens each. Of the cold tier: `cold_turns`
    times, `cold_out` tokens are decoded with blocks written meanwhile, and without.
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
    chunk_tokens: int = 0
    host_streams: int = 8
    host_out: int = 400
    repeat_tokens: int = 1500
    repeat_again: int = 3
    shared_tokens: int = 777
    turns: int = 6
    turns_tokens: int = 2000
    together: int = 8
    prefix_tokens: int = 1000
    cache_out: int = 16
    cold_out: int = 120
    cold_turns: int = 2

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, its answer and a question of `together` included."""
        return max(
            self.prompt_tokens + max(self.out_tokens, self.running_out),
            self.ttft_tokens + 1,
            self.long_tokens + 1,
            max(self.repeat_tokens, self.turns_tokens) + self.cache_out,
            self.prefix_tokens + QUESTION_TOKENS + self.cache_out,
        )

    @property
    def shares_in_full(self) -> bool:
        """Whether requests at once share as much as the requirement on their time supposes."""
        return self.together >= 8 and self.prefix_tokens >= 1000


QUICK = Plan(
    repeats=1,
    streams=(1, 8),
    out_tokens=8,
    long_tokens=1100,
    running_out=24,
    host_out=64,
    repeat_tokens=600,
    shared_tokens=333,
    turns=3,
    turns_tokens=600,
    together=4,
    prefix_tokens=400,
    cache_out=8,
    cold_out=70,
    cold_turns=1,
)
