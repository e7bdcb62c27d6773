"""Encoders of a server: search, load and HTTP side."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from omlx_server.api.models.served_model import ServedEmbedder, ServedReranker
from omlx_server.compute.embed.batch import BatchWork
from omlx_server.compute.embed.embedder import CrossEncoder, Embedder
from omlx_server.compute.embed.files import read_object
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.model_files.kind import ENCODERS, ModelKind, architecture_of
from omlx_server.core.work import Work
from omlx_server.engine.client.encoders import DocumentScorer, EmbeddingClient, EncoderModel
from omlx_server.engine.client.model_client import GeneratorClient, ModelClient
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.model_jobs import judge_prompts
from omlx_server.errors import ModelUnavailable
from omlx_server.models.description import describe
from omlx_server.models.kind import kind_in
from omlx_server.models.locate import Located
from omlx_server.models.progress import ProgressListener
from omlx_server.models.pull import encoder
from omlx_server.settings import Settings
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.ranking.yes_no import YesNoPrompt
from omlx_server.text.tokenizer import Tokenizer

# Most tokens of a pair, Qwen3-Reranker's own limit.
_YES_NO_TOKENS = 8192
# A Qwen3 embedding model may look like a chat model by its files; chat models can also rank.
_EMBEDDERS = (ModelKind.EMBEDDING, ModelKind.CHAT)
_RERANKERS = (ModelKind.RERANK, ModelKind.CHAT)


@dataclass(frozen=True, slots=True)
class FoundEncoders:
    embedder: Located | None = None
    reranker: Located | None = None


def find_encoders(settings: Settings, progress: ProgressListener) -> FoundEncoders:
    """Return the encoders of `models.embedding` and `models.reranker`, downloaded if needed. Raises
    ModelUnavailable."""
    names = settings.models
    embedder = _find(names.embedding, settings, progress, "models.embedding", _EMBEDDERS)
    reranker = _find(names.reranker, settings, progress, "models.reranker", _RERANKERS)
    if reranker is not None and not is_encoder(reranker.path):
        YesNoPrompt.of(Tokenizer.load(reranker.path))
    return FoundEncoders(embedder, reranker)


def refuse_to_chat(located: Located) -> None:
    """Raise ModelUnavailable if the model is an encoder."""
    if is_encoder(located.path):
        name = located.names[0]
        is_ranker = kind_in(located.path, name) is ModelKind.RERANK
        raise ModelUnavailable(
            f"{name} reads and does not write: it can't be the model to chat with",
            hint=f"serve it beside one: --{'reranker' if is_ranker else 'embedding-model'} {name}",
        )


def is_encoder(directory: Path) -> bool:
    return architecture_of(read_object(directory / "config.json")).startswith(ENCODERS)


# --- On the mlx thread, in slices -----------------------------------------------------------------


W = TypeVar("W", Embedder, CrossEncoder)


def on_account(account: MemoryAccount, loading: Work[W], nbytes: int) -> Work[EncoderModel[W]]:
    """Run `loading` with a share of the memory account: `nbytes`, then the size of the weights."""
    with ExitStack() as undo:
        share = account.share(nbytes)
        undo.callback(share.leave)
        yield from account.wait_for_jobs()
        model = yield from loading
        share.set_weights(model.weight_bytes)
        undo.pop_all()
    return EncoderModel(model, share)


# --- Their HTTP side ------------------------------------------------------------------------------


async def serve_embedder(
    located: Located, client: ModelClient[EncoderModel[Embedder]]
) -> ServedEmbedder:
    """Return the HTTP side of an embedding model. Raises ModelUnavailable."""
    encoder = await asyncio.to_thread(InputEncoder.load, located.path)
    return ServedEmbedder(located.names, client, encoder, await EmbeddingClient.of(client))


async def serve_cross_encoder(
    located: Located, client: ModelClient[EncoderModel[CrossEncoder]]
) -> ServedReranker:
    """Return the HTTP side of a cross-encoder. Raises ModelUnavailable."""
    encoder = await asyncio.to_thread(InputEncoder.load, located.path)
    most = await client.ask(lambda encoder: encoder.model.limits.max_tokens)

    def score(encoder: EncoderModel[CrossEncoder], inputs: Sequence[TokenizedText]) -> BatchWork:
        return encoder.model.score(inputs, room=encoder.room)

    scores = DocumentScorer(client, score, most)
    return ServedReranker(located.names, client, encoder, scores)


def judge(located: Located, client: GeneratorClient, tokenizer: Tokenizer) -> ServedReranker:
    """Return the reranker made of a chat model. Raises ModelUnavailable if its vocabulary lacks yes
    or no."""
    prompt = YesNoPrompt.of(tokenizer)
    most = min(describe(located.path).context_length, _YES_NO_TOKENS)

    def score(instance: ModelInstance, inputs: Sequence[TokenizedText]) -> BatchWork:
        prompts = [one.ids for one in inputs]
        return judge_prompts(instance, prompts, yes=prompt.yes, no=prompt.no)

    scores = DocumentScorer(client, score, most)
    return ServedReranker(located.names, None, prompt, scores)


def _find(
    name: str,
    settings: Settings,
    progress: ProgressListener,
    key: str,
    kinds: Collection[ModelKind],
) -> Located | None:
    if not name:
        return None
    models = settings.models
    located = encoder(models.resolve_alias(name), models, progress)
    kind = kind_in(located.path, located.names[0])
    if kind not in kinds:
        raise ModelUnavailable(
            f"{name} can't be {key}: it is a model for {kind.value}"
            if kind is not ModelKind.UNKNOWN
            else f"{name} can't be {key}: its architecture is not known for that",
            hint="BERT, RoBERTa, XLM-R and Qwen3 make vectors; the same with one label rank.",
        )
    return located
