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
    """How many models may be loaded at once; 0 leaves that to memory.limit. The model that was used
    longest ago leaves first."""
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
    """Settings of single models, by name: { "org/name" = { kv_cache = { bits = 8 } } }. A model can
    have context_length, ttl (its idle_ttl_seconds), pin, adapter, chat_template, kv_cache,
    speculation, sampling, a system message, presets and more: see docs/configuration.md."""

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
    """Drafts: the next tokens of an answer are proposed, and one step verifies several of them. An
    answer is the same as without, and comes sooner; where drafts don't pay there are none. Every
    mode but "off" drafts tokens that a grammar leaves no choice about, and:
      off    nothing is drafted, even if a request asks for it: one token at a time
      auto   ngram and draft together
      ngram  what followed the last words at an earlier place of the prompt or the answer; makes
             code edits, quotes and summaries faster
      draft  what the draft model writes, if there is one
      heads  what extra heads of the model predict, if it has any
    A request can choose another mode by its field speculation."""
    draft_model: types.ModelName = ""
    """A small model that drafts for the models of this server: a name, a directory or a Hugging
    Face id. It takes memory of its own. See docs/speculation.md."""


class AdaptersSettings(Section, frozen=True):
    directory: types.MaybeDirectory = ""
    """LoRA adapters of a model are beside its files, in adapters/NAME/, and below this directory,
    in ORG/MODEL/NAME/. Requests ask for one as MODEL:NAME. "" is none. A relative path begins at
    the directory of the config file. See docs/adapters.md."""
    default: types.AdapterName = ""
    """The adapter of the model that the server is started with, for requests that name none: a
    name, or the path of its directory, with a slash, or a dot or ~ at its start. A relative one
    begins at the directory of the config file, in a flag or a variable at the working directory."""
    max_loaded: Annotated[int, Meta(ge=1, le=256), Live()] = 8
    """How many adapters of a model may be in memory. For a new one, the adapter that was used
    longest ago leaves. While all are in use, a request waits up to 30 seconds, then gets a 503."""
    max_bytes: Annotated[Size, Live()] = 2 * 10**9
    """How much memory the adapters of one model may take together. Their numbers are held as
    float32. One adapter alone takes twice its weights. See docs/adapters.md."""


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
      truncate  the oldest turns are left out, as few as possible. Each turn then changes the start
                of the prompt, which is read again
      rolling   the oldest turns are left out down to the low-water mark, so that next turns find
                their beginning in the cache
    The system message, the tools and the last turn always stay. A request can choose by itself with
    context_overflow."""
    low_water: Annotated[float, Meta(ge=0.1, le=0.9), Live()] = 0.5
    """What rolling leaves, as a share of the context."""


class ImagesSettings(Section, frozen=True):
    enabled: bool = True
    """Images in conversations, for models that take them (docs/images.md). With false no vision
    tower is loaded, which saves its memory."""
    max_tokens: Annotated[int, Meta(ge=16, le=65536), Live()] = 4096
    """The most tokens of one image, for models that can look at images in more or less detail.
    Fewer are faster and take less of the context; small print needs many."""
    max_per_request: Annotated[int, Meta(ge=1, le=1000), Live()] = 100
    """How many images a request may have, those of earlier turns included."""


class ResponsesSettings(Section, frozen=True):
    store: Literal["memory", "disk", "off"] = "memory"
    """Where the answers of /v1/responses are kept, so that a later request can go on from one:
      memory  until the server ends
      disk    in files, one each, readable by their owner only; they hold the conversations as text.
              With cache.hot_cache_only, which writes nothing, they stay in memory
      off     nowhere"""
    directory: types.Directory = field(default_factory=AtHome("~/.cache/omlx_server/responses"))
    """The directory of responses that are kept on disk."""
    max_entries: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """How many responses are kept; the client that has most loses its least recently used ones."""
    max_bytes: Size = 128 * 2**20
    """The most bytes of all responses together. Each holds its whole conversation."""


class SchedulerSettings(Section, frozen=True):
    max_batch_size: Annotated[int, Meta(ge=1, le=256), Live()] = 8
    """How many answers of one client are decoded together. Each further client adds one, up to half
    as many more. Answers that are decoded together share one pass over the weights, but each gets a
    little slower and takes memory for its context."""
    max_queue: Annotated[int, Meta(ge=1, le=100_000), Live()] = 128
    """How many requests may wait for a place. Clients with less than their share of the places may
    add half as many. The next request gets a 429 with Retry-After."""
    prefill_chunk_tokens: types.AutoChunk = "auto"
    """Long prompts are read in pieces of this many tokens, a multiple of 64, and running answers go
    on between them. Smaller: smoother streams. Larger: a GPU reads prompts faster. "auto" measures
    256 to 2048 when a model is loaded for the first time, and takes larger ones while no answer is
    running. See docs/memory.md."""
    max_batched_tokens: Annotated[int, Meta(ge=64, le=65536)] = 2048
    """While no answer is running, short prompts of up to this many tokens are read together in one
    step. Beside running answers it is one piece of a prompt. At least prefill_chunk_tokens and
    max_batch_size."""
    decode_share: Annotated[float, Meta(ge=0, le=0.9), Live()] = 0.2
    """The share of the time that running answers keep while prompts are read, from 0 to 0.9. 0
    takes turns: one token of every answer, one piece of a prompt. See docs/memory.md."""
    longest_dispatch: types.AutoSeconds = "auto"
    """The longest work, in seconds, that a GPU gets at once. macOS ends a program whose work keeps
    the display waiting for seconds. Deep prompts are read in smaller pieces for it, and layers are
    submitted apart. "auto" is 0.2 on a GPU, and no limit (0) on a CPU. See docs/trouble.md."""
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
    needs. When memory is short, stored blocks go first, then requests wait. A request that could
    never fit gets a 503; see docs/memory.md. "auto" is the RAM without memory.reserve, and no more
    than Metal's recommended working set where there is one."""
    reserve: Annotated[types.AutoSize, Live()] = "auto"
    """What "auto" leaves to the system and to other programs. "auto" is a quarter of the RAM, from
    2 GB to 16 GB, and half of the RAM at most. It has no effect if you set a limit."""
    activation_reserve: types.AutoSize = "auto"
    """What one step takes for itself, above weights and conversations. "auto" measures that when a
    model is loaded for the first time, and plans each step by its shape. With a size like "2GB"
    every step counts as that much; nothing is measured, so the first start is faster."""
    wired: types.WiredSize = "off"
    """What Metal may wire: memory that macOS can't take away. "off" never asks for it, since Macs
    have panicked where memory was wired (docs/memory.md); "auto" is memory.limit."""
    pressure: Annotated[Literal["auto", "off"], Live()] = "auto"
    """Whether the server looks at the machine's memory once a second, and gives way when it is
    short. Stored blocks go first; when very little is left, new requests wait and
    unused models are unloaded. Afterwards all comes back; see docs/memory.md."""


class CacheSettings(Section, frozen=True):
    enabled: bool = True
    """The prefix cache: a prompt that was seen is not computed again, whatever its continuation."""
    block_tokens: Annotated[
        Literal[16, 32, 64, 128, 256, 512, 1024], Wording("16, 32, 64 … 1024")
    ] = 64
    """Tokens per block. Smaller blocks share more, larger ones cost less bookkeeping."""
    hot_cache_max_bytes: Annotated[types.AutoSize, Live()] = "auto"
    """Memory for stored blocks. "auto" is what memory.limit leaves beside the weights and the
    largest step; running conversations take from it what they need. Blocks over the budget leave,
    the least recently used first."""
    hot_cache_only: Annotated[bool, Live("turning it on applies while the server runs")] = False
    """RAM only: blocks that leave are dropped, and nothing touches the disk. The cold_* keys then
    have no effect."""
    cold_dir: types.Directory = field(default_factory=AtHome("~/.cache/omlx_server/kv"))
    """The cold tier: blocks that leave the memory are kept in files and read back when a prompt
    begins with them, also after a restart. Several models may share the directory. One server
    writes to it; a second one reads only."""
    cold_cache_max_bytes: Annotated[Size, Live()] = 20 * 10**9
    """The size of all files of the cold tier; the least recently used go first. With cache.remote
    it bounds only what this server remembers of the store; it asks the store for the rest."""
    cold_min_free_disk: Annotated[Size, Live()] = 10 * 10**9
    """Nothing is written while the disk has less room than this left."""
    cold_write_queue_bytes: Annotated[Size, Live()] = 512 * 10**6
    """Blocks on their way to the disk stay in memory, up to here (and a sixteenth of memory.limit
    at most); what comes on top is dropped."""
    cold_writes_per_day: Annotated[Size, Live()] = 100 * 10**9
    """The most bytes of blocks written to the disk in a day, which spares an SSD; 0 is no limit. A
    quarter is for any block that leaves the memory, the rest for those of prefixes that came twice
    and of conversations that went on, an eighth of it for the server's end (docs/cache.md)."""
    cold_write_through: Annotated[bool, Live()] = False
    """Write every block as soon as it is computed, not only when it leaves the memory: a crash then
    loses nothing, and the disk is written to more."""
    cold_ttl_days: Annotated[float, Meta(ge=0, le=36500)] = 0
    """Remove blocks that were unused for this many days; 0 keeps them as long as there is room."""
    checkpoint_max_bytes: Annotated[types.AutoSize, Live()] = "auto"
    """The share of hot_cache_max_bytes for the states of recurrent layers (Qwen3-Next, Mamba, …).
    "auto" is a quarter."""
    salt: Literal["per-key", "shared"] = "per-key"
    """Who shares cached prefixes: "per-key" keeps clients with different API keys apart, "shared"
    does not. A request's own cache_salt keeps it apart in both."""
    remote: Annotated[Secret, Wording("a URL as redis://host:6379/0 or s3://bucket/prefix")] = (
        field(default_factory=Secret)
    )
    """Keep blocks in a store that several servers share, instead of files: redis://, rediss://,
    unix://, valkey://, s3://, gs://, az:// or file://. Needs the extra "redis" or "objectstore".
    What is there goes by the store's own rules (and cold_ttl_days in Redis). All servers need the
    same file "secret" in their cold_dir. A password in it is better set by OMLX_CACHE__REMOTE."""

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
      turboquant  codes of the least distortion; best at 3 bits, slower: at 30 layers and 4 bits a
                  token takes 1,324 kernels at any length where none takes 514, and no GPU has shown
                  yet what that costs; see docs/kv-cache.md"""
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
