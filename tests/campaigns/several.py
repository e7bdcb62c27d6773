"""Two models that chat and one that embeds, where there is room for two: they come and go under
mixed requests. All in this process but the socket, so that MLX itself can be asked.

Each answer is compared with the one that its model gives when it has the machine for itself; the
memory is looked at before every step that is measured, and after each model has left.
"""

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from omlx_server.api.app import create_app
from omlx_server.api.models.served import ServedModels
from omlx_server.compute.hardware import device
from omlx_server.core.memory.fit import WEIGHTS_SHARE
from omlx_server.engine.client.engine_client import AsyncEngine
from omlx_server.models.bundled.embedded import ensure
from omlx_server.models.catalogue import MINILM
from omlx_server.models.locate import Located
from omlx_server.models.progress import Silent
from omlx_server.settings import Settings
from omlx_server.wiring.context import make_context
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.known import KnownModels
from omlx_server.wiring.model_directory import find_model
from omlx_server.wiring.model_factory import InstanceFactory
from omlx_server.wiring.open_models import begin, open_models
from tests.api.conftest import CHATML
from tests.campaigns.traffic import opening
from tests.text import makers
from tests.tiny_models import save_tiny

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"
_TRIES = 100
_KINDS = ("llama", "gemma3_text")
_TOPICS = ("rivers", "kitchens", "trains", "chess", "gardens", "tides", "maps", "bread")


@dataclass(frozen=True, slots=True)
class Trio:
    """Two models that chat and one that embeds. A step may take `step` bytes."""

    first: Located
    second: Located
    embedder: Located
    dirs: tuple[Path, ...]
    limit: int
    step: int

    @classmethod
    def of(cls, first: Located, second: Located, embedder: Located, *, room: int) -> "Trio":
        """With a limit under which no third one fits, and `room` beside the weights of two."""
        models = (first, second, embedder)
        sizes = sorted(_size(model) for model in models)
        limit = max(int(sum(sizes[1:]) / WEIGHTS_SHARE * 1.01), sum(sizes[1:]) + room)
        assert sum(sizes) > limit * WEIGHTS_SHARE, "all three would fit"
        dirs = tuple(dict.fromkeys(model.path.parents[1] for model in models))
        return cls(first, second, embedder, dirs, limit, room // 2)

    @property
    def names(self) -> tuple[str, str, str]:
        return self.first.names[0], self.second.names[0], self.embedder.names[0]


def _size(model: Located) -> int:
    return sum(file.stat().st_size for file in model.path.glob("*.safetensors"))


def tiny(directory: Path) -> Trio:
    """Of about 45 MB each."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 3, "intermediate_size": 2048}
    first, second = (_model(directory / "org" / kind, kind, **sizes) for kind in _KINDS)
    reader = directory / "org" / "tiny-embedding"
    embedder = _model(reader, "qwen3", architectures=["Qwen3ForCausalLM"], **sizes)
    return Trio.of(first, second, embedder, room=32 << 20)


def starter(directory: Path) -> Trio:
    """The starter model, a random one of 250 MB, and all-MiniLM-L6-v2."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 8, "intermediate_size": 3072}
    found = find_model("starter", Settings(), Silent())
    other = _model(directory / "org" / "other", "llama", **sizes)
    minilm = ensure(MINILM, Settings().models.dirs[0])
    return Trio.of(found, other, Located(minilm, (MINILM.full_name, MINILM.name)), room=200 << 20)


def _model(path: Path, kind: str, **sizes: Any) -> Located:
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    save_tiny(makers.save(path, "byte_level", CHATML), kind, vocab_size=vocab, **sizes)
    return Located(path, (f"org/{path.name}", path.name))


@dataclass(slots=True)
class Outcome:
    """`peak` is a share of the limit; `left` how far the memory is off after each unload, as a
    share of what it was before the load. `loads` counts by model."""

    answers: int = 0
    retries: int = 0
    peak: float = 0.0
    drift: float = 0.0
    left: list[float] = field(default_factory=list)
    loads: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        held = self.peak <= 1.0 and all(abs(share) <= 0.03 for share in self.left)
        return held and not (self.wrong or self.lost) and abs(self.drift) <= 0.02

    def __str__(self) -> str:
        loads = ", ".join(f"{name} {count}" for name, count in sorted(self.loads.items()))
        left = max(self.left, key=abs, default=0.0)
        return (
            f"{self.answers} answers in {self.seconds:.0f} s, {self.retries} asked again, "
            f"{len(self.wrong)} wrong, {len(self.lost)} lost; loads: {loads}; "
            f"peak {self.peak:.3f} of the limit, drift {self.drift:.4f}, "
            f"off by at most {left:+.4f} after an unload"
        )


def campaign(trio: Trio, requests: int, *, clients: int = 4, seed: int = 1) -> Outcome:
    return asyncio.run(_campaign(trio, requests, clients, seed))


async def _campaign(trio: Trio, requests: int, clients: int, seed: int) -> Outcome:
    gc.collect()  # of whatever ran before in this process
    outcome, asked = Outcome(), [_question(trio, random.Random(seed + n)) for n in range(requests)]
    expected = await _alone(trio, asked)
    begun = time.monotonic()
    async with _serving(trio, limit=trio.limit) as (models, engine, http):
        with _watched(outcome, trio.limit):
            turn: Iterator[int] = iter(range(requests))
            work = (_client(http, turn, asked, expected, outcome) for _ in range(clients))
            await asyncio.gather(*work)
            await _come_and_go(models, engine, trio, outcome)
        for name in trio.names:
            entry = models.pool.entry((await models.find_listing(name)).load_request.key)
            outcome.loads[name] = entry.loads if entry is not None else 0
        outcome.drift = await _drift(engine)
    outcome.seconds = time.monotonic() - begun
    return outcome


async def _client(
    http: httpx.AsyncClient,
    turn: Iterator[int],
    asked: list[dict[str, Any]],
    expected: list[object],
    outcome: Outcome,
) -> None:
    for number in turn:
        body = asked[number]
        answer = await _asked(http, body, outcome)
        if answer is None:
            continue
        outcome.answers += 1
        if answer != expected[number]:
            outcome.wrong.append(f"{body}: {answer!r:.80} instead of {expected[number]!r:.80}")


async def _asked(http: httpx.AsyncClient, body: dict[str, Any], outcome: Outcome) -> object:
    """As clients do: a 503 that says when to come again is no answer."""
    path = EMBED if "input" in body else CHAT
    for _ in range(_TRIES):
        response = await http.post(path, json=body)
        if response.status_code == 200:
            return _content(response.json())
        if "retry-after" not in response.headers:
            break
        outcome.retries += 1
        await asyncio.sleep(0.2)
    outcome.lost.append(f"{body}: {response.status_code} {response.text:.200}")
    return None


def _content(answer: dict[str, Any]) -> object:
    if "choices" in answer:
        return [choice["message"]["content"] for choice in answer["choices"]]
    return tuple(round(number, 3) for number in answer["data"][0]["embedding"])


def _question(trio: Trio, dice: random.Random) -> dict[str, Any]:
    name = dice.choice(trio.names)
    words = " ".join(dice.choices(_TOPICS, k=dice.randint(4, 60)))
    if name == trio.embedder.names[0]:
        return {"model": name, "input": words}
    return {
        "model": name,
        "messages": [
            {"role": "system", "content": opening(dice)},
            {"role": "user", "content": words},
        ],
        "temperature": 0,
        "max_tokens": dice.randint(4, 24),
        "n": dice.choice([1, 1, 2]),
    }


async def _alone(trio: Trio, asked: list[dict[str, Any]]) -> list[object]:
    """What each model answers when it is asked one thing after the other."""
    async with _serving(trio, limit=0) as (_, _, http):
        answers = Outcome()
        return [await _asked(http, body, answers) for body in asked]


async def _come_and_go(
    models: ServedModels, engine: AsyncEngine, trio: Trio, outcome: Outcome
) -> None:
    """Each model by itself: the memory that it has left is given back."""
    for known in models.catalogue.known():
        await models.pool.unload(known.load_request.key)
    for name in trio.names:
        before = await engine.call(_active)
        known = await models.find_listing(name)
        await models.pool.load(known.load_request)
        held = await engine.call(_active) - before
        await models.pool.unload(known.load_request.key)
        after = await engine.call(_active)
        outcome.left.append((after - before) / max(1, held))


async def _drift(engine: AsyncEngine) -> float:
    """At rest. While a model comes or goes, some of it is on no account."""
    for _ in range(20):
        if engine.memory is not None and abs(engine.memory.drift) <= 0.02:
            return engine.memory.drift
        await asyncio.sleep(0.5)
    assert engine.memory is not None
    return engine.memory.drift


def _active() -> int:
    device.wait()
    device.drain_pool()
    return device.active_memory()


@contextmanager
def _watched(outcome: Outcome, limit: int) -> Iterator[None]:
    """Steps begin a peak of their own: what there was before is noted down first."""
    begin_peak = device.begin_peak

    def note() -> None:
        outcome.peak = max(outcome.peak, device.peak_memory() / limit)
        begin_peak()

    begin_peak()
    device.begin_peak = note
    try:
        yield
        note()
    finally:
        device.begin_peak = begin_peak


@asynccontextmanager
async def _serving(
    trio: Trio, *, limit: int
) -> AsyncIterator[tuple[ServedModels, AsyncEngine, httpx.AsyncClient]]:
    settings = Settings.of(
        {
            "models": {"dirs": [str(path) for path in trio.dirs], "use_hf_cache": False},
            "memory": {"limit": limit or "auto", "activation_reserve": trio.step},
            "cache": {"hot_cache_only": True},
        }
    )
    failures: list[str] = []
    known = KnownModels(settings, trio.first, FoundEncoders())
    async with AsyncExitStack() as stack:
        opened = await open_models(InstanceFactory(settings), known, failures.append, stack)
        models, engine = opened.models, opened.engine
        app = create_app(make_context(models, settings))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        http = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300)
        )
        await begin(models, known)
        yield models, engine, http
        for one in models.catalogue.known():
            await models.pool.unload(one.load_request.key)
    assert not failures, failures
