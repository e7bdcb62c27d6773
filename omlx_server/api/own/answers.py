"""The types of the answers of health, tokenize, rerank and cache routes."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from omlx_server.api.openai.answers import ReadUsage
from omlx_server.api.rank_health import RankHealth


class MemoryHealth(TypedDict):
    """Bytes; see docs/memory.md. `live`: running sequences; `blocks`, `checkpoints`: the prefix
    cache; `pending`: on its way to the disk; `step`: planned for one step; `pool`: free for the
    next one; `machine`: of the limit, given up while the machine is short of memory. Outside MLX:
    `grammars`, `token_ids` (encoded texts), `responses` (in memory), `bodies` (of incoming
    requests). `resident`: RAM of the process. `pressure` on the machine's memory: 0, 1 (the hot
    tier shrinks) or 2 (new requests wait). `drift`: share of MLX's memory that is in no line."""

    limit: int
    weights: int
    live: int
    blocks: int
    checkpoints: int
    pending: int
    step: int
    pool: int
    machine: int
    grammars: int
    token_ids: int
    responses: int
    bodies: int
    resident: int
    pressure: int
    drift: float


class EngineHealth(TypedDict):
    """A chat model. `running`, `prefilling` and `waiting` count sequences. Prefill chunks have
    `chunk_tokens` beside running answers, `chunk_tokens_alone` else; null until loaded."""

    model: str
    state: Literal["starting", "ready", "stopped", "failed"]
    running: int
    prefilling: int
    waiting: int
    chunk_tokens: int | None
    chunk_tokens_alone: int | None
    problem: str | None


class LoadedHealth(TypedDict):
    model: str
    kind: Literal["chat", "embedding", "rerank", "unknown"]


class ConfigHealth(TypedDict):
    """`problem`: why a changed config is not in force. `needs_restart`: changed keys that need a
    restart."""

    problem: str | None
    needs_restart: list[str]


class Health(TypedDict):
    """`engines`: loaded chat models; `loaded`: all loaded models. `memory` is null if it is not
    watched; `cluster` is left out without one. Without a key, a server with API keys tells only
    `status`."""

    status: Literal["ok", "unavailable"]
    engines: NotRequired[list[EngineHealth]]
    loaded: NotRequired[list[LoadedHealth]]
    memory: NotRequired[MemoryHealth | None]
    device_errors: NotRequired[dict[str, int]]  # failures of the device, by class
    config: NotRequired[ConfigHealth]
    cluster: NotRequired[list[RankHealth]]


class Version(TypedDict):
    version: str


class Index(TypedDict):
    server: str
    version: str
    api: str


class Tokenized(TypedDict):
    """vLLM's form."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class TokenPiece(TypedDict):
    """A piece that is no text by itself is given as bytes."""

    id: int
    piece: str | list[int]


class TokenizedContent(TypedDict):
    """llama.cpp's form, the answer to `content`."""

    tokens: list[int] | list[TokenPiece]


class Detokenized(TypedDict):
    """The text by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict):
    """`document` is there if it was asked for."""

    index: int
    relevance_score: float
    document: NotRequired[RankedDocument]


class BilledTokens(TypedDict):
    input_tokens: int


class RankingMeta(TypedDict):
    tokens: BilledTokens


class Ranking(TypedDict):
    """The most relevant document comes first."""

    id: str
    model: str
    results: list[Ranked]
    usage: ReadUsage
    meta: RankingMeta


class CachedBlock(TypedDict):
    """Tokens from `start` to before `stop`."""

    start: int
    stop: int
    tier: Literal["hot", "cold"]


class CacheProbe(TypedDict):
    """`known_tokens` were computed once, `cached_tokens` are cached now. `checkpoints`: positions
    of checkpoints of recurrent layers."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    known_tokens: int
    blocks: list[CachedBlock]
    checkpoints: list[int]


class DroppedCache(TypedDict):
    bytes: int
    blocks: int
    checkpoints: int


class CacheReset(TypedDict):
    dropped: list[DroppedCache]


class CacheImport(TypedDict):
    """`added`: entries that were not cached before."""

    model: str
    tokens: int
    blocks: int
    states: int
    added: int


class PinAnswer(TypedDict):
    """`hot_tokens` and `cold_tokens` are cached in memory and on disk."""

    id: str
    object: Literal["cache.pin"]
    model: str
    created: int
    tokens: int
    hot_tokens: int
    cold_tokens: int


class PinList(TypedDict):
    object: Literal["list"]
    data: list[PinAnswer]


class DeletedPin(TypedDict):
    """`stored`: the pin's file remains, as `cache.hot_cache_only` was switched on since; a server
    with that directory will have the pin again."""

    id: str
    object: Literal["cache.pin"]
    deleted: Literal[True]
    stored: bool
