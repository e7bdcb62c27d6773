"""Sections about models: which there are, what requests get from them, and their memory."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta, field

from omlx_server.core.speculation.methods import Mode
from omlx_server.errors import ConfigError
from omlx_server.settings import types
from omlx_server.settings.fields import Section
from omlx_server.settings.overrides import ModelOverrides
from omlx_server.settings.types import AtHome, Conversion, Live, Secret, Size, Wording

_AFFINE_BITS = (2, 3, 4, 6, 8)
_BITS_OF_SCHEME: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "affine": _AFFINE_BITS,
        "rotated": _AFFINE_BITS,
        "turboquant": (2, 2.5, 3, 3.5, 4, 8),
    }
)


class ModelsSettings(Section, frozen=True):
    dirs: Annotated[
        tuple[Path, ...],
        Meta(min_length=1),
        Conversion(types.with_own_models),
        Wording("a list of directories, at least one"),
    ] = field(default_factory=AtHome((types.OWN_MODELS,)))
    """Where models live: new ones go to the first directory, all of them are searched. The default
    directory is always searched, too, as the last."""
    use_hf_cache: bool = True
    """Also offer MLX models that lie in the Hugging Face cache already."""
    other_programs: tuple[Literal["ollama", "lm-studio", "llama.cpp"], ...] = (
        "ollama",
        "lm-studio",
        "llama.cpp",
    )
    """Also offer the models that these programs keep on this machine, under the names that they
    have there. Nothing is written there. [] offers none."""
    default: str = ""
    """What `omlx-server serve` serves when no MODEL is named: a directory, a catalogue name or a
    Hugging Face id. "" is the starter model."""
    embedding: str = ""
    """A model for POST /v1/embeddings: "all-MiniLM-L6-v2" (fetched as the starter model is), a
    directory or a Hugging Face id. "" is none. See docs/embeddings.md."""
    reranker: str = ""
    """A model for POST /v1/rerank: a cross-encoder, or one that answers with yes or no."""
    autoload: Annotated[bool, Live()] = True
    """Load a model that is here when a request names it. Else only `omlx-server load` does."""
    max_loaded: Annotated[int, Meta(ge=0, le=1000), Live()] = 0
    """How many models may be loaded at once; 0 leaves that to memory.limit."""
    idle_ttl_seconds: Annotated[types.IdleSeconds, Live()] = 0
    """A model that was unused for this long leaves memory; 0 keeps it until its room is needed."""
    pinned: Annotated[tuple[str, ...], Wording("a list of names of models"), Live()] = ()
    """Models that are loaded at the start and never leave memory."""
    aliases: Annotated[
        dict[str, str], Wording('names by name, as {"small" = "org/name"}'), Live()
    ] = field(default_factory=dict)
    """Other names of models: { small = "starter", "gpt-4o" = "org/name" }"""
    overrides: Annotated[
        dict[str, ModelOverrides],
        Wording('tables by model name, as {"org/name" = {kv_cache = {bits = 8}}}'),
    ] = field(default_factory=dict)
    """Settings of single models: { "org/name" = { kv_cache = { bits = 8 } } }. A model can have
    context_length, ttl, pin, adapter, kv_cache, presets and more: see docs/configuration.md."""

    def resolve_alias(self, name: str) -> str:
        """Return the final name. Raises ConfigError for a cycle."""
        names = [name]
        while target := self.aliases.get(names[-1]):
            if target in names:
                raise ConfigError(
                    f"models.aliases lead round in a ring: {' -> '.join([*names, target])}",
                    hint="one of them must stand for a model",
                )
            names.append(target)
        return names[-1]

    def __post_init__(self) -> None:
        for alias in self.aliases:
            self.resolve_alias(alias)


class SpeculationSettings(Section, frozen=True):
    mode: Annotated[Mode, Live()] = "auto"
    """Drafts: the next tokens of an answer are proposed, and one step verifies several of them. The
    answer is the same, and comes sooner. Every mode but "off" drafts what a grammar forces, and:
      off    nothing is drafted, even if a request asks for it
      auto   ngram and draft together
      ngram  what followed the last words at an earlier place, as in code edits and summaries
      draft  what the draft model writes, if there is one
      heads  what extra heads of the model predict, if it has any
    A request can choose another mode by its field speculation."""
    draft_model: types.ModelName = ""
    """A small model that drafts: a name, a directory or a Hugging Face id (docs/speculation.md)."""


class AdaptersSettings(Section, frozen=True):
    directory: types.MaybeDirectory = ""
    """LoRA adapters of a model are beside its files, in adapters/NAME/, and below this directory,
    in ORG/MODEL/NAME/. Requests ask for one as MODEL:NAME. See docs/adapters.md."""
    default: types.AdapterName = ""
    """The adapter of the model that the server is started with, for requests that name none: a name
    or the path of a directory, which has a slash, or a dot or ~ at its start."""
    max_loaded: Annotated[int, Meta(ge=1, le=256), Live()] = 8
    """How many adapters of a model may be in memory. While all are in use, a request for another
    waits up to 30 seconds, then gets a 503."""
    max_bytes: Annotated[Size, Live()] = 2 * 10**9
    """How much memory the adapters of one model may take together (docs/adapters.md)."""


class SamplingSettings(Section, frozen=True):
    source: Annotated[Literal["model", "openai"], Live()] = "model"
    """Where temperature and the like come from when a request leaves them out: "model" is what the
    model's makers recommend (its generation_config.json), "openai" the API's own defaults."""
    max_tokens: Annotated[types.MaxTokens, Live()] = 0
    """Longest answer of a request that names no max_tokens; 0 is to the end of the context."""


class ContextSettings(Section, frozen=True):
    overflow: Annotated[Literal["error", "truncate", "rolling"], Live()] = "error"
    """What happens to a conversation that outgrows the model's context:
      error     it is refused, with both numbers
      truncate  the oldest turns are left out, as few as possible; the prompt is then read again
      rolling   the oldest turns are left out down to low_water, so that the next ones are cached
    The system message, the tools and the last turn stay. A request's context_overflow wins."""
    low_water: Annotated[float, Meta(ge=0.1, le=0.9), Live()] = 0.5
    """What rolling leaves, as a share of the context."""


class ImagesSettings(Section, frozen=True):
    enabled: bool = True
    """Images in conversations, for models that take them (docs/images.md). With false no vision
    tower is loaded, which saves its memory."""
    max_tokens: Annotated[int, Meta(ge=16, le=65536), Live()] = 4096
    """The most tokens of one image. Fewer are faster; small print needs many."""
    max_per_request: Annotated[int, Meta(ge=1, le=1000), Live()] = 100
    """How many images a request may have, those of earlier turns included."""


class ResponsesSettings(Section, frozen=True):
    store: Literal["memory", "disk", "off"] = "memory"
    """Where the answers of /v1/responses are kept, so that a later request can go on from one:
      memory  until the server ends
      disk    in files with the conversations as text, readable by their owner only. With
              cache.hot_cache_only they stay in memory
      off     nowhere"""
    directory: types.Directory = field(default_factory=AtHome("~/.cache/omlx_server/responses"))
    """The directory of responses that are kept on disk."""
    max_entries: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """How many responses are kept; the client that has most loses its least recently used ones."""
    max_bytes: Size = 128 * 2**20
    """The most bytes of all responses together. Each holds its whole conversation."""


class SchedulerSettings(Section, frozen=True):
    max_batch_size: Annotated[int, Meta(ge=1, le=256), Live()] = 8
    """How many answers of one client are decoded together; each further client adds one, up to half
    as many more. Together they are faster, but each is a little slower and takes memory."""
    max_queue: Annotated[int, Meta(ge=1, le=100_000), Live()] = 128
    """How many requests may wait; clients with less than their share may add half as many. The next
    one gets a 429 with Retry-After."""
    prefill_chunk_tokens: types.AutoChunk = "auto"
    """Long prompts are read in pieces of this many tokens, a multiple of 64, and running answers go
    on between them. Smaller: smoother streams. Larger: a GPU reads prompts faster. "auto" measures
    that when a model is loaded for the first time. See docs/memory.md."""
    max_batched_tokens: Annotated[int, Meta(ge=64, le=65536)] = 2048
    """While no answer is running, short prompts of up to this many tokens are read in one step. At
    least prefill_chunk_tokens and max_batch_size."""
    decode_share: Annotated[float, Meta(ge=0, le=0.9), Live()] = 0.2
    """The share of the time that running answers keep while prompts are read, from 0 to 0.9. 0
    takes turns: one token of every answer, one piece of a prompt. See docs/memory.md."""
    longest_dispatch: types.AutoSeconds = "auto"
    """The longest work, in seconds, that a GPU gets at once: macOS ends a program that keeps the
    display waiting. "auto" is 0.2 on a GPU, and no limit (0) on a CPU. See docs/trouble.md."""
    policy: Literal["fair", "fcfs"] = "fair"
    """Whose prompt is read next. "fair" shares the time among clients, and among the conversations
    of each; within one, the shortest prompt goes first. "fcfs" is first come, first served."""

    def __post_init__(self) -> None:
        for key in ("prefill_chunk_tokens", "max_batch_size"):
            tokens = getattr(self, key)
            if tokens != "auto" and tokens > self.max_batched_tokens:
                raise ConfigError(
                    f"scheduler.{key} ({tokens}) is more than "
                    f"scheduler.max_batched_tokens ({self.max_batched_tokens})",
                    hint="one step must have room for it: raise max_batched_tokens",
                )


class MemorySettings(Section, frozen=True):
    limit: Annotated[types.AutoLimit, Live()] = "auto"
    """What the server may hold: weights, running conversations, stored blocks, and what a step
    needs. When memory is short, stored blocks go first, then requests wait (docs/memory.md). "auto"
    is the RAM without memory.reserve, and no more than Metal recommends."""
    reserve: Annotated[types.AutoSize, Live()] = "auto"
    """What "auto" leaves to the system and to other programs. "auto" is a quarter of the RAM, from
    2 GB to 16 GB, and half of the RAM at most. It has no effect if you set a limit."""
    activation_reserve: types.AutoSize = "auto"
    """What one step takes for itself, above weights and conversations. "auto" measures that when a
    model is loaded for the first time; with a size like "2GB" the first start is faster."""
    wired: types.WiredSize = "off"
    """What Metal may wire: memory that macOS can't take away. "off" never asks for it, since Macs
    have panicked where memory was wired (docs/memory.md); "auto" is memory.limit."""
    pressure: Annotated[Literal["auto", "off"], Live()] = "auto"
    """Whether the server gives way when the machine's memory is short: stored blocks go first; when
    very little is left, new requests wait and unused models are unloaded (docs/memory.md)."""


class CacheSettings(Section, frozen=True):
    enabled: bool = True
    """The prefix cache: a prompt that was seen is not computed again, whatever its continuation."""
    block_tokens: Annotated[
        Literal[16, 32, 64, 128, 256, 512, 1024], Wording("16, 32, 64 … 1024")
    ] = 64
    """Tokens per block. Smaller blocks share more, larger ones cost less bookkeeping."""
    hot_cache_max_bytes: Annotated[types.AutoSize, Live()] = "auto"
    """Memory for stored blocks, of which running conversations take what they need. "auto" is what
    memory.limit leaves beside the weights and the largest step."""
    hot_cache_only: Annotated[bool, Live("turning it on applies while the server runs")] = False
    """RAM only: nothing touches the disk, and the cold_* keys have no effect."""
    cold_dir: types.Directory = field(default_factory=AtHome("~/.cache/omlx_server/kv"))
    """The cold tier: blocks that leave the memory are kept in files and read back when a prompt
    begins with them, also after a restart. One server writes to it; a second one reads only."""
    cold_cache_max_bytes: Annotated[Size, Live()] = 20 * 10**9
    """The size of all files of the cold tier; the least recently used go first. With cache.remote
    it bounds only what this server remembers of the store; it asks the store for the rest."""
    cold_min_free_disk: Annotated[Size, Live()] = 10 * 10**9
    """Nothing is written while the disk has less room than this left."""
    cold_write_queue_bytes: Annotated[Size, Live()] = 512 * 10**6
    """The most memory for blocks on their way to the disk, up to a sixteenth of memory.limit."""
    cold_writes_per_day: Annotated[Size, Live()] = 100 * 10**9
    """The most bytes of blocks written to the disk in a day, which spares an SSD; 0 is no limit
    (docs/cache.md)."""
    cold_write_through: Annotated[bool, Live()] = False
    """Write every block when it is computed: a crash loses none, and the disk wears more."""
    cold_ttl_days: Annotated[float, Meta(ge=0, le=36500)] = 0
    """Remove blocks that were unused for this many days; 0 keeps them as long as there is room."""
    checkpoint_max_bytes: Annotated[types.AutoSize, Live()] = "auto"
    """Of hot_cache_max_bytes, what is for states of recurrent layers; "auto" is a quarter."""
    salt: Literal["per-key", "shared"] = "per-key"
    """Who shares cached prefixes: "per-key" keeps clients with different API keys apart, "shared"
    does not. A request's own cache_salt keeps it apart in both."""
    remote: Annotated[Secret, Wording("a URL as redis://host:6379/0 or s3://bucket/prefix")] = (
        field(default_factory=Secret)
    )
    """Keep blocks in a store that several servers share, instead of files: redis://, rediss://,
    unix://, valkey://, s3://, gs://, az:// or file://. Needs the extra "redis" or "objectstore",
    and the same file "secret" in all cold_dirs. Give a password by OMLX_CACHE__REMOTE."""

    @property
    def has_cold(self) -> bool:
        """Whether a cold tier is wanted; its directory may be unusable."""
        return self.enabled and not self.hot_cache_only


class KvCacheSettings(Section, frozen=True):
    scheme: types.Scheme = "none"
    """Keep keys and values in few bits, from the first token of a prompt on: in the running batch,
    in stored blocks, on disk. The same memory then holds several times the tokens.
      none        as the model computes them
      affine      MLX's own quantisation; fast, and good from 8 bits on
      rotated     the same after a random rotation, which spreads outliers; good from 4 bits on
      turboquant  codes of the least distortion; best at 3 bits, slower (docs/kv-cache.md)"""
    bits: types.Bits = 4
    """2, 3, 4, 6 or 8; turboquant has 2, 2.5 (keys 2, values 3), 3, 3.5, 4 or 8."""
    group_size: types.GroupSize = 64
    """Elements that share a scale, for affine and rotated; a divisor of the head size."""

    def __post_init__(self) -> None:
        allowed = _BITS_OF_SCHEME.get(self.scheme, (self.bits,))
        if self.bits not in allowed:
            raise ConfigError(
                f"kv_cache.scheme {self.scheme} can't have {self.bits:g} bits",
                hint="it can have " + ", ".join(f"{bits:g}" for bits in allowed),
            )
