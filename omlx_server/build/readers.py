"""Composition of the models that read without writing: found on the disk, loaded on the mlx thread
before the chat model, and given their HTTP side."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_server.api.readers import Readers, ServedEmbedder, ServedReranker
from omlx_server.compute.embed import yes_no
from omlx_server.compute.embed.batch import Work
from omlx_server.compute.embed.files import read_object
from omlx_server.compute.embed.loader import load_cross_encoder, load_embedder
from omlx_server.compute.loader import load
from omlx_server.core.encoded import Encoded
from omlx_server.core.model_kind import ENCODERS, Kind, architecture_of
from omlx_server.engine.client import AsyncEngine
from omlx_server.engine.lane import Lane
from omlx_server.engine.readers import Embeddings, Resident, Scores
from omlx_server.errors import ModelUnavailable
from omlx_server.models import embedded
from omlx_server.models.description import describe
from omlx_server.models.embedded import MINILM
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import Located, locate
from omlx_server.models.progress import Progress
from omlx_server.settings import Settings
from omlx_server.text.pairs import InputEncoder
from omlx_server.text.tokenizer import Tokenizer
from omlx_server.text.yes_no import YesNoPrompt
from omlx_server.text.yes_no_pairs import YesNoPairs

# Qwen3-Reranker's own limit. What is longer takes memory and time, and its end rarely decides.
_YES_NO_TOKENS = 8192
# The files of a Qwen3 need not tell that it makes vectors; a language model may judge documents.
_EMBEDDERS = (Kind.EMBEDDING, Kind.CHAT)
_RERANKERS = (Kind.RERANK, Kind.CHAT)


@dataclass(frozen=True, slots=True)
class FoundReaders:
    """The directories of reading models; None where none is wanted."""

    embedder: Located | None = None
    reranker: Located | None = None


def find_readers(settings: Settings, progress: Progress) -> FoundReaders:
    """What `models.embedding` and `models.reranker` name, downloaded first if need be.

    Raises:
        ModelUnavailable: there is no such model, or it is for something else.
    """
    names = settings.models
    return FoundReaders(
        _find(names.embedding, settings, progress, "models.embedding", _EMBEDDERS),
        _find(names.reranker, settings, progress, "models.reranker", _RERANKERS),
    )


def refuse_to_chat(located: Located) -> None:
    """Raises ModelUnavailable for an encoder, which can't write."""
    if _architecture(located.path).startswith(ENCODERS):
        name = located.names[0]
        is_ranker = kind_in(located.path, name) is Kind.RERANK
        raise ModelUnavailable(
            f"{name} reads and does not write: it can't be the model to chat with",
            hint=f"serve it beside one: --{'reranker' if is_ranker else 'embedding-model'} {name}",
        )


class ReaderModels:
    """The reading models of one server, on their way from the disk to HTTP."""

    def __init__(self, found: FoundReaders, chat: Located) -> None:
        self._embedders = [_Embedder(found.embedder)] if found.embedder else []
        self._rerankers = [_reranker(found.reranker, chat)] if found.reranker else []

    def start(self) -> int:
        """Load all. On the mlx thread; returns the bytes of their weights."""
        return sum(model.start() for model in [*self._embedders, *self._rerankers])

    def serve(self, engine: AsyncEngine) -> Readers:
        """Their HTTP side. Reads tokenizers from the disk; any thread.

        Raises:
            ModelUnavailable: a tokenizer is missing or does not suit its model.
        """
        return Readers(
            [model.serve(engine) for model in self._embedders],
            [model.serve(engine) for model in self._rerankers],
        )


class _Embedder:
    def __init__(self, located: Located) -> None:
        self._located = located
        self._resident = Resident(lambda: load_embedder(located.path))

    def start(self) -> int:
        return self._resident.start().weight_bytes

    def serve(self, engine: AsyncEngine) -> ServedEmbedder:
        return ServedEmbedder(
            self._located.names,
            int(time.time()),
            InputEncoder.load(self._located.path),
            Embeddings(engine, self._resident),
        )


class _CrossEncoder:
    def __init__(self, located: Located) -> None:
        self._located = located
        self._resident = Resident(lambda: load_cross_encoder(located.path))

    def start(self) -> int:
        return self._resident.start().weight_bytes

    def serve(self, engine: AsyncEngine) -> ServedReranker:
        scores = Scores(
            engine,
            lambda lane, inputs: self._resident.model.score(inputs),
            lambda: self._resident.model.limits.max_tokens,
        )
        encoder = InputEncoder.load(self._located.path)
        return ServedReranker(self._located.names, int(time.time()), encoder, scores)


class _YesNo:
    """A language model that judges. Where it is the one that chats, it is not loaded twice."""

    def __init__(self, located: Located, chat: Located) -> None:
        self._located = located
        self._shared = located.path == chat.path
        self._resident = Resident(lambda: load(located.path))

    def start(self) -> int:
        return 0 if self._shared else self._resident.start().weight_bytes

    def serve(self, engine: AsyncEngine) -> ServedReranker:
        path = self._located.path
        prompt = YesNoPrompt.of(Tokenizer.load(path))
        most = min(describe(path).context_length, _YES_NO_TOKENS)

        def score(lane: Lane, inputs: Sequence[Encoded]) -> Work:
            loaded = lane.runner.loaded if self._shared else self._resident.model
            prompts = [one.ids for one in inputs]
            return yes_no.score(loaded.model, prompts, yes=prompt.yes, no=prompt.no)

        scores = Scores(engine, score, lambda: most)
        return ServedReranker(self._located.names, int(time.time()), YesNoPairs(prompt), scores)


def _reranker(located: Located, chat: Located) -> _CrossEncoder | _YesNo:
    if _architecture(located.path).startswith(ENCODERS):
        return _CrossEncoder(located)
    return _YesNo(located, chat)


def _find(
    name: str, settings: Settings, progress: Progress, key: str, kinds: Collection[Kind]
) -> Located | None:
    if not name:
        return None
    located = _locate(name, settings, progress)
    kind = kind_in(located.path, located.names[0])
    if kind not in kinds:
        raise ModelUnavailable(
            f"{name} can't be {key}: it is a model for {kind.value}"
            if kind is not Kind.UNKNOWN
            else f"{name} can't be {key}: its architecture is not known for that",
            hint="BERT, RoBERTa, XLM-R and Qwen3 make vectors; the same with one label rank.",
        )
    return located


def _locate(name: str, settings: Settings, progress: Progress) -> Located:
    if name in (MINILM.name, MINILM.full_name):
        path = embedded.ensure(MINILM, settings.models.dirs[0], progress=progress)
        return Located(path, (MINILM.full_name, MINILM.name))
    return locate(name, settings.models.dirs, settings.models.use_hf_cache)


def _architecture(directory: Path) -> str:
    return architecture_of(read_object(directory / "config.json"))
