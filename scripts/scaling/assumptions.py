"""What the simulation takes for given: a model on a machine, the network, the store that servers
share, and the agents. Values only; `TABLE` says where each comes from, and is printed in
docs/scaling.md.

Figures of a Mac were not measured by this project, which has none: replace them by what
`omlx-server bench` says on yours.
"""

from dataclasses import dataclass, field

GB = 10**9
BLOCK_TOKENS = 64
"""Of a server: the default of `cache.block_tokens`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A Mac with one model. Bytes, tokens, and seconds."""

    kv_bytes_per_token: int = 131_072
    weight_bytes: float = 4.9 * GB
    room_bytes: int = 40 * GB
    memory_bytes_per_second: float = 464 * GB
    prefill_tokens_per_second: float = 800.0
    doubles_at: int = 30_500
    step_seconds: float = 0.002
    rows: int = 8
    chunk: int = 512
    decode_share: float = 0.2
    ssd_budget: int = 20 * GB
    ssd_bytes_per_second: float = 5 * GB
    hash_bytes_per_second: float = 1.26 * GB
    write_queue_bytes: int = 512 * 10**6

    def prefill_seconds(self, start: int, stop: int) -> float:
        """The time of tokens [start, stop) of a prompt, which attend to all before them."""
        depth = 1 + (start + stop) / 2 / self.doubles_at
        return (stop - start) / self.prefill_tokens_per_second * depth

    def decode_seconds(self, tokens: int) -> float:
        """The time of one token of each row, whose contexts have so many tokens together."""
        read = self.weight_bytes + tokens * self.kv_bytes_per_token
        return self.step_seconds + read / self.memory_bytes_per_second


@dataclass(frozen=True, slots=True)
class Network:
    """The links of machines and of the shared store, in bytes a second, and its round trip."""

    machine_bytes_per_second: float = 1.1 * GB
    store_bytes_per_second: float = 1.1 * GB
    store_bytes: int = 500 * GB
    machines_per_store: int = 10
    round_trip: float = 0.0004
    deadline: float = 2.0
    name_bytes: int = 100
    bytes_per_token: int = 4
    bytes_per_event: int = 250


@dataclass(frozen=True, slots=True)
class Agents:
    """Users whose agents work in sessions. Lengths in tokens, times in seconds; a mean is that of
    a log-normal distribution with `spread` as its sigma, unless said otherwise."""

    users_per_machine: int = 3
    system_tokens: tuple[int, ...] = (18_000, 14_000, 10_000)
    tools_share: float = 0.6
    project_tokens: int = 2_000
    task_tokens: int = 500
    result_tokens: int = 1_400
    answer_tokens: int = 200
    spread: float = 0.8
    longest_piece: int = 8_000
    turns: int = 20
    longest_session: int = 60_000
    tool_seconds: float = 5.0
    user_share: float = 0.15
    user_seconds: float = 60.0
    between_seconds: float = 120.0
    delegates: float = 0.05
    helpers: int = 2
    helper_turns: int = 5


@dataclass(frozen=True, slots=True)
class Scale:
    """How exactly tokens are simulated: a simulated token stands for `unit` tokens, a block has
    `block` tokens. Users come during the first `ramp` seconds; what arrives before `warm` seconds
    is not counted, nor what arrives after `end`."""

    unit: int = BLOCK_TOKENS
    block: int = BLOCK_TOKENS
    ramp: float = 300.0
    warm: float = 600.0
    end: float = 1800.0

    def units(self, tokens: float) -> int:
        """How many simulated tokens stand for so many, at least one."""
        return max(1, round(tokens / self.unit))


FINE = Scale(end=6000.0)
"""For one machine: blocks are those of a server, and the time is long, since few users have few
sessions."""
MEDIUM = Scale(unit=128, block=256)
"""For ten machines."""
COARSE = Scale(unit=256, block=1024, ramp=180.0, warm=300.0, end=540.0)
"""For a thousand machines: few and large blocks, and a short time."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    machine: Machine = field(default_factory=Machine)
    network: Network = field(default_factory=Network)
    agents: Agents = field(default_factory=Agents)


BASE = Assumptions()

TABLE: tuple[tuple[str, str, str], ...] = (
    (
        "keys and values of a token",
        "131,072 bytes",
        "32 layers of 8 heads of 128 in bfloat16: Llama 3.1 8B",
    ),
    ("weights", "4.9 GB", "the same model in 4 bits"),
    (
        "memory for keys and values",
        "40 GB",
        "a Mac with 64 GB: `memory.limit` is 48 GB, less weights and a step",
    ),
    (
        "prefill at the head of a prompt",
        "800 tok/s",
        "an M4 with 10 GPU cores does 225 (github.com/brand-o/normiebench, issue 3); an M4 Max has "
        "40. Not measured here",
    ),
    (
        "prefill at 30,500 tokens",
        "half of it",
        "attention costs 4 x depth x 4,096 x 32 operations a token, all else 16 billion",
    ),
    (
        "a decode step",
        "2 ms, and weights and contexts read at 464 GB/s",
        "85 % of the 546 GB/s of an M4 Max, the share that the M4 of that issue reaches",
    ),
    (
        "rows, chunk, time for answers beside prefills",
        "8, 512 tokens, 0.2",
        "`scheduler.max_batch_size`, a usual chunk, `scheduler.decode_share`",
    ),
    (
        "cold tier on the SSD",
        "20 GB at 5 GB/s",
        "`cache.cold_cache_max_bytes`; what a Mac's SSD reads",
    ),
    (
        "digests of stored blocks",
        "1.26 GB/s",
        "blake2b on one thread, measured on the project's Linux machine",
    ),
    ("queue of writes", "512 MB", "`cache.cold_write_queue_bytes`"),
    ("network of a machine, of a store", "10 GbE, 1.1 GB/s", "a Mac Studio has it"),
    (
        "the shared store",
        "one box of 500 GB for each 10 machines",
        "round trip 0.4 ms; a call that takes over 2 s fails, as in the server",
    ),
    ("users for each machine", "3", "one agent each at a time, beside its helpers"),
    (
        "system prompt and tools",
        "18,000, 14,000 or 10,000 tokens",
        "three kinds of agents; two dozen tools are 64 kB of JSON",
    ),
    ("project's own instructions", "2,000 tokens", "for each user; follows the system prompt"),
    (
        "a turn",
        "1,400 tokens of results in, 200 out",
        "means of log-normal lengths, sigma 0.8, at most 8,000",
    ),
    ("a session", "20 turns in the mean, at most 60,000 tokens", "then a pause of 120 s"),
    (
        "time between two turns",
        "5 s for tools; 60 s where the user is asked",
        "exponential; every seventh turn is the user's",
    ),
    (
        "helpers (sub-agents)",
        "2 at once, in 5 % of the turns, 5 turns each",
        "they share the tools with their parent: 60 % of its system prompt; the parent waits",
    ),
)
"""What is assumed, the figure, and where it comes from."""
