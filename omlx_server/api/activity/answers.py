"""The answers about the server's activity, without any text of prompts."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Place = Literal["queued", "restoring", "prefilling", "decoding", "paused"]


class MemorySample(TypedDict):
    """The memory at one moment, in bytes; `at` in seconds since 1970. `live` is held by running
    sequences alone, `shared` are cached blocks that they use; `blocks` and `checkpoints` are unused
    ones. `machine`: not used while the machine is short. `pool`: freed buffers that wait for their
    next use and count as free."""

    at: float
    limit: int
    weights: int
    live: int
    shared: int
    blocks: int
    checkpoints: int
    pending: int
    step: int
    machine: NotRequired[int]
    free: int
    pool: NotRequired[int]


class MemoryTold(TypedDict):
    """Samples of the last ten minutes, the oldest first."""

    every_seconds: int
    history: list[MemorySample]


class LoadProgress(TypedDict):
    """The bytes of a loading model's weights that are in memory, and of all; 0 if unknown."""

    bytes: int
    total: int


class RequestAtWork(TypedDict):
    """A request that is being answered. `restoring` waits for the cold tier; `paused` made room for
    others. Of the prompt, `computed_tokens` are in caches, `cached_tokens` of them from the prefix
    cache. `tokens_per_second` is about the answer, or while prefilling about the prompt. `load`: of
    the model it waits for."""

    id: str
    model: str
    place: Place
    choices: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    tokens_per_second: float | None
    waits_for: str | None
    load: LoadProgress | None
    seconds: float


class Progress(TypedDict):
    """A request's state, null while it is not at work; of its model's, `before` wait longer."""

    request: RequestAtWork | None
    before: int


class RequestDone(TypedDict):
    """A request that has ended; it began at `at`, in seconds since 1970. `status` is 0 where no
    response began. `error` is the code of its error. What it had not is null."""

    id: str
    at: float
    route: str
    model: str | None
    status: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    ttft_seconds: float | None
    tokens_per_second: float | None
    finish_reason: str | None
    error: str | None
    seconds: float


class RequestsAtWork(TypedDict):
    at_work: list[RequestAtWork]


class Requests(RequestsAtWork):
    """`at_work` has the oldest first, at most 500; `done` the last 200, the newest first."""

    done: list[RequestDone]


class CacheCounters(TypedDict):
    """Counts of a model's prefix cache since the server's start, and its content now. `hits` are
    prompts that were there as a whole, `misses` the others by reason. `bytes` without
    `in_use_bytes` may be `budget_bytes`."""

    hits: int
    misses: dict[str, int]
    looked_up_tokens: int
    found_tokens: int
    cold_tokens: int
    evicted_blocks: int
    evicted_checkpoints: int
    blocks: int
    checkpoints: int
    bytes: int
    in_use_bytes: int
    budget_bytes: int


class ModelCache(TypedDict):
    model: str
    counters: CacheCounters


class LiveModel(TypedDict):
    name: str
    kind: Literal["chat", "embedding", "rerank", "unknown"]
    state: Literal["absent", "loading", "loaded", "unloading", "failed"]
    load: LoadProgress | None
    pinned: bool
    in_use: int


class ColdWrites(TypedDict):
    """Bytes written to the disk, and how many a day may be; 0 for no limit."""

    today_bytes: int
    since_start_bytes: int
    daily_bytes: int


class LiveState(TypedDict):
    """The server at one moment. `memory` is null while nothing is known of it. `done` are requests
    that have ended since the event before."""

    type: Literal["state"]
    memory: MemorySample | None
    requests: RequestsAtWork
    done: list[RequestDone]
    models: list[LiveModel]
    cache: list[ModelCache]
    cold: ColdWrites | None
