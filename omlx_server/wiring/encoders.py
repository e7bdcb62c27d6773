"""Composition of the models that read without writing: found on the disk, loaded on the mlx thread,
and given their HTTP side."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from omlx_server.api.models.encoders import ServedEmbedder, ServedReranker
from omlx_server.compute.embed.batch import Work as Slices
from omlx_server.compute.embed.cross_encoder import CrossEncoder
from omlx_server.compute.embed.embedder import Embedder
from omlx_server.compute.embed.files import read_object
from omlx_server.compute.embed.loader import loading_cross_encoder, loading_embedder
from omlx_server.core.encoded import Encoded
from omlx_server.core.model_files.kind import ENCODERS, Kind, architecture_of
from omlx_server.core.work import Work
from omlx_server.engine.client.encoders import Embeddings, Reader, Scores
from omlx_server.engine.client.model_client import LaneClient, ModelClient
from omlx_server.engine.memory.account import Account
from omlx_server.engine.model_instance import Lane
from omlx_server.engine.scoring import judged
from omlx_server.errors import ModelUnavailable
from omlx_server.models.bundled import embedded
from omlx_server.models.bundled.embedded import MINILM
from omlx_server.models.description import describe
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import Located, locate
from omlx_server.models.progress import Progress
from omlx_server.settings import Settings
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.ranking.yes_no import YesNoPrompt
from omlx_server.text.ranking.yes_no_pairs import YesNoPairs
from omlx_server.text.tokenizer import Tokenizer

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
    embedder = _find(names.embedding, settings, progress, "models.embedding", _EMBEDDERS)
    reranker = _find(names.reranker, settings, progress, "models.reranker", _RERANKERS)
    if reranker is not None and not is_encoder(reranker.path):
        YesNoPrompt.of(Tokenizer.load(reranker.path))
    return FoundReaders(embedder, reranker)


def refuse_to_chat(located: Located) -> None:
    """Raises ModelUnavailable for an encoder, which can't write."""
    if is_encoder(located.path):
        name = located.names[0]
        is_ranker = kind_in(located.path, name) is Kind.RERANK
        raise ModelUnavailable(
            f"{name} reads and does not write: it can't be the model to chat with",
            hint=f"serve it beside one: --{'reranker' if is_ranker else 'embedding-model'} {name}",
        )


def is_encoder(directory: Path) -> bool:
    """Whether it can only read."""
    return _architecture(directory).startswith(ENCODERS)


# --- On the mlx thread, in slices -----------------------------------------------------------------


def embedder(account: Account, located: Located, nbytes: int) -> Work[Reader[Embedder]]:
    """A model of about so many bytes; until it is there they are set aside."""
    return _reader(account, loading_embedder(located.path), nbytes)


def cross_encoder(account: Account, located: Located, nbytes: int) -> Work[Reader[CrossEncoder]]:
    """The same for one that ranks."""
    return _reader(account, loading_cross_encoder(located.path), nbytes)


class _Weighs(Protocol):
    @property
    def weight_bytes(self) -> int: ...


W = TypeVar("W", bound=_Weighs)


def _reader(account: Account, loading: Work[W], nbytes: int) -> Work[Reader[W]]:
    with ExitStack() as undo:
        seat = account.seat(nbytes)
        undo.callback(seat.leave)
        yield from account.settling()
        model = yield from loading
        seat.weigh(model.weight_bytes)
        undo.pop_all()
    return Reader(model, seat)


# --- Their HTTP side ------------------------------------------------------------------------------


async def serve_embedder(located: Located, client: ModelClient[Reader[Embedder]]) -> ServedEmbedder:
    """Of a model that is loaded.

    Raises:
        ModelUnavailable: its tokenizer is missing or does not suit it.
    """
    encoder = await asyncio.to_thread(InputEncoder.load, located.path)
    return ServedEmbedder(located.names, client, encoder, await Embeddings.of(client))


async def serve_cross_encoder(
    located: Located, client: ModelClient[Reader[CrossEncoder]]
) -> ServedReranker:
    """The same for one that ranks."""
    encoder = await asyncio.to_thread(InputEncoder.load, located.path)
    most = await client.ask(lambda reader: reader.model.limits.max_tokens)

    def score(reader: Reader[CrossEncoder], inputs: Sequence[Encoded]) -> Slices:
        return reader.model.score(inputs, room=reader.room)

    scores = Scores(client, score, most)
    return ServedReranker(located.names, client, encoder, scores)


def judge(located: Located, client: LaneClient, tokenizer: Tokenizer) -> ServedReranker:
    """The side of a language model that answers with yes or no. Raises ModelUnavailable where it
    can't."""
    prompt = YesNoPrompt.of(tokenizer)
    most = min(describe(located.path).context_length, _YES_NO_TOKENS)

    def score(lane: Lane, inputs: Sequence[Encoded]) -> Slices:
        prompts = [one.ids for one in inputs]
        return judged(lane, prompts, yes=prompt.yes, no=prompt.no)

    scores = Scores(client, score, most)
    return ServedReranker(located.names, None, YesNoPairs(prompt), scores)


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
