"""The types of the answers of this server's own routes: health, tokenize, rerank, cache."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from omlx_server.api.openai.answers import ReadUsage


class MemoryHealth(TypedDict):
    """Bytes; the lines of docs/memory.md. `live` are conversations at work, `blocks` and
    `checkpoints` the prefix cache, `pending` is on its way to the disk, `step` what a step is
    planned with, `pool` is free for the next one. Beside MLX are `grammars` (compiled ones),
    `token_ids` (of texts that were encoded, with the texts), `responses` (those that are kept in
    memory) and `bodies` (of requests that are on their way). `resident` is the RAM of the whole
    process, as the system has it. `drift`: the share that MLX holds and is in none of its lines."""

    limit: int
    weights: int
    live: int
    blocks: int
    checkpoints: int
    pending: int
    step: int
    pool: int
    grammars: int
    token_ids: int
    responses: int
    bodies: int
    resident: int
    drift: float


class EngineHealth(TypedDict):
    """One model that chats. `running`, `prefilling` and `waiting` count sequences. Prompts are
    prefilled in chunks of `chunk_tokens` beside running answers, of `chunk_tokens_alone` else; null
    while it is not loaded. `problem`: why it does not run."""

    model: str
    state: Literal["starting", "ready", "stopped", "failed"]
    running: int
    prefilling: int
    waiting: int
    chunk_tokens: int | None
    chunk_tokens_alone: int | None
    problem: str | None


class LoadedHealth(TypedDict):
    """A model in memory; `kind` is what it is for."""

    model: str
    kind: Literal["chat", "embedding", "rerank", "unknown"]


class ConfigHealth(TypedDict):
    """`problem`: why a changed config is not in force; the one before it is. `needs_restart`: the
    keys of which the config has other values than are in force."""

    problem: str | None
    needs_restart: list[str]


class RankHealth(TypedDict):
    """One of the processes that compute the model together. `problem`: what is wrong with it. Bytes
    of arrays, and `done`, the messages of rank 0 that it has worked off, are those of its last sign
    of life; null before the first one."""

    rank: int
    host: str
    status: Literal["away", "checking", "ready", "here", "lost", "refused"]
    problem: str | None
    active_bytes: int | None
    peak_bytes: int | None
    done: int | None


class Health(TypedDict):
    """`engines` are the chat models that are loaded, `loaded` all models that are. `memory` is null
    where it is not watched. `cluster` has the ranks that compute the model together; it is left out
    where there is no cluster. Where the server has API keys, who sends none is told the `status`
    alone."""

    status: Literal["ok", "unavailable"]
    engines: NotRequired[list[EngineHealth]]
    loaded: NotRequired[list[LoadedHealth]]
    memory: NotRequired[MemoryHealth | None]
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
    """A piece that is no text by itself is given as its bytes."""

    id: int
    piece: str | list[int]


class TokenizedContent(TypedDict):
    """llama.cpp's form: what `content` is answered with."""

    tokens: list[int] | list[TokenPiece]


class Detokenized(TypedDict):
    """The text by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict):
    """`document` is there when it was asked for."""

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
    """`known_tokens` were computed once, and may be gone; `cached_tokens` are there. `checkpoints`:
    positions at which the state of recurrent layers is kept."""

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
    """What there was, model by model."""

    dropped: list[DroppedCache]


class CacheImport(TypedDict):
    """`added`: of what the archive held, that which was not there before."""

    model: str
    tokens: int
    blocks: int
    states: int
    added: int


class PinAnswer(TypedDict):
    """`hot_tokens` and `cold_tokens`: how much of it is there, in memory and on disk."""

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
    """`stored`: its file still names it, because `cache.hot_cache_only` was switched on since. A
    server that uses that directory will keep it again."""

    id: str
    object: Literal["cache.pin"]
    deleted: Literal[True]
    stored: bool
