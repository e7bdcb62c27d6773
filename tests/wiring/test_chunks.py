"""Chunk sizes of models that are loaded as a server loads them: chosen, kept, and right."""

import random
from pathlib import Path
from typing import Any

import pytest

from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.model.loader import load
from omlx_server.compute.planning.probe import ForwardProbe
from omlx_server.core.chunk_sizes import ChunkSizes, candidates
from omlx_server.core.memory.estimate import FlatPlanner
from omlx_server.core.memory.kv import PrefillShape
from omlx_server.core.step import Step
from omlx_server.core.work import finish
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.models.locate import Located
from omlx_server.process.apply import change_instances
from omlx_server.settings import Settings
from omlx_server.wiring.chunks import choosing
from omlx_server.wiring.model_factory import InstanceFactory
from tests.compute.oracle import is_greedy
from tests.core.memory.shapes import MODEL
from tests.engine.running import collect, request, until
from tests.engine.several import play, several
from tests.tiny_models import VOCAB, load_tiny, save_tiny

KINDS = ("llama", "gemma3_text", "qwen3_next")
# A quarter of a second is enough for 256 tokens, and two seconds are for all.
SLOW = {8: 0.05, 64: 0.06, 256: 0.2, 512: 0.3, 1024: 0.5, 2048: 0.9}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        save_tiny(path / kind, kind)
    return path


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every forward whose time is measured, for real."""
    seen: list[int] = []
    real = ForwardProbe.prefill_seconds

    def prefill_seconds(self: ForwardProbe, prefill: PrefillShape) -> float:
        seen.append(prefill.tokens)
        return real(self, prefill)

    monkeypatch.setattr(ForwardProbe, "prefill_seconds", prefill_seconds)
    return seen


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which chunks take as long as `SLOW` says."""
    monkeypatch.setattr(ForwardProbe, "prefill_seconds", lambda self, prefill: SLOW[prefill.tokens])


def sections(path: Path, **scheduler: Any) -> dict[str, Any]:
    cold = {"cold_dir": str(path / "kv"), "cold_min_free_disk": 0, "block_tokens": 16}
    return {"cache": cold, "memory": {"activation_reserve": "auto"}, "scheduler": scheduler}


def chunks_of(directory: Path, settings: Settings) -> ChunkSizes:
    """The sizes of a model that a server with these settings has loaded."""
    instances = InstanceFactory(settings)
    try:
        instance = finish(instances.making(Located(directory / "llama", ("llama",))))
        assert instance.watch is not None
        assert instance.watch.planner.chunk == instance.chunks.alone
        return instance.chunks
    finally:
        instances.close(5)


def test_a_model_is_measured_at_its_first_load_only(
    directory: Path, tmp_path: Path, timed: list[int]
) -> None:
    settings = Settings.of(sections(tmp_path))
    chosen = chunks_of(directory, settings)
    assert chosen.beside in candidates(16, 1024) and timed
    timed.clear()
    assert chunks_of(directory, settings) == chosen
    assert not timed


def test_the_sizes_follow_from_the_times(directory: Path, tmp_path: Path, slow: None) -> None:
    settings = Settings.of(sections(tmp_path))
    expected = ChunkSizes(256, 1024) if device.is_cpu() else ChunkSizes(256, 2048)
    assert chunks_of(directory, settings) == expected


def test_other_bounds_are_measured_anew(directory: Path, tmp_path: Path, timed: list[int]) -> None:
    chunks_of(directory, Settings.of(sections(tmp_path)))
    timed.clear()
    chosen = chunks_of(directory, Settings.of(sections(tmp_path, max_batched_tokens=512)))
    assert max(timed) == 512 and chosen.alone <= 512


def test_a_number_is_used_as_it_is(directory: Path, tmp_path: Path, timed: list[int]) -> None:
    settings = Settings.of(sections(tmp_path, prefill_chunk_tokens=320))
    assert chunks_of(directory, settings) == ChunkSizes(320, 320)
    assert not timed


def test_a_fixed_reserve_of_memory_is_for_no_larger_chunks_than_the_default(
    directory: Path, tmp_path: Path, timed: list[int]
) -> None:
    settings = sections(tmp_path) | {"memory": {"activation_reserve": "64MB"}}
    chosen = chunks_of(directory, Settings.of(settings))
    assert max((256, *timed)) <= device_policy.current().chunk
    assert chosen.alone <= device_policy.current().chunk


@pytest.mark.parametrize(("room", "tokens"), [(8 << 20, 1024), ((8 << 20) - 1, 256)])
def test_a_chunk_takes_an_eighth_of_the_memory_at_most(
    tmp_path: Path, slow: None, room: int, tokens: int
) -> None:
    planner = FlatPlanner(MODEL, 1 << 20)
    settings = Settings.of(sections(tmp_path, max_batched_tokens=1024))
    work = choosing(load_tiny("llama"), settings, planner, room, None, lambda: True)
    assert finish(work).alone == tokens


def test_other_settings_leave_the_sizes_of_a_loaded_model_alone(
    directory: Path, tmp_path: Path, slow: None
) -> None:
    instances = InstanceFactory(Settings.of(sections(tmp_path)))
    instance = finish(instances.making(Located(directory / "llama", ("llama",))))
    chosen = instance.chunks
    assert instance.cache.read_ahead.rates.seconds_per_token > 0, "nobody waits in vain for files"
    change_instances(instances, Settings.of(sections(tmp_path, max_queue=1)))
    assert instance.chunks == chosen != ChunkSizes(256, 256)
    instances.close(5)


# -- warm equals cold, with the sizes that were chosen --------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of every chunk that is computed."""
    seen: list[int] = []
    real = ModelInstance.launch

    def launch(self: ModelInstance, step: Step) -> Any:
        seen.extend(len(chunk.tokens) for chunk in step.chunks)
        return real(self, step)

    monkeypatch.setattr(ModelInstance, "launch", launch)
    return seen


def tokens(seed: object, count: int) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randrange(VOCAB) for _ in range(count)]


async def asked(
    directory: Path, kind: str, settings: dict[str, Any], prompt: list[int], *, beside: bool
) -> tuple[list[int], int]:
    """The answer of a server that has just started, beside a running answer or alone, and how many
    tokens of the prompt came from its cache."""
    async with several(directory, **settings) as house:
        client = await house.load(kind)
        stream = await client.submit(request("row", tokens("row", 9), 3000)) if beside else None
        if stream is not None:
            await until(lambda: client.status.load.running == 1)
        generation = await client.submit(request("asked", prompt, 12))
        answer = await collect(generation)
        if stream is not None:
            async with stream:
                pass
        assert generation.admitted is not None
        return answer, generation.admitted.cached


@pytest.mark.parametrize("kind", ["gemma3_text", "qwen3_next"])  # with layers of full attention
def test_a_prefix_of_another_start_is_right_however_it_was_cut(
    directory: Path, tmp_path: Path, slow: None, launched: list[int], kind: str
) -> None:
    """It is computed alone, in large chunks; its continuations are computed after restarts: alone,
    beside a row, and on a grid that somebody has set by hand."""
    model = load(directory / kind).model
    prefix, auto, fixed = tokens(kind, 1300), sections(tmp_path), {"prefill_chunk_tokens": 64}

    async def scene() -> None:
        starts: tuple[tuple[list[int], dict[str, Any], bool], ...] = (
            ([], auto, False),
            (tokens(1, 700), auto, False),
            (tokens(2, 700), auto, True),
            (tokens(3, 300), sections(tmp_path, **fixed), False),
        )
        for number, (more, settings, beside) in enumerate(starts):
            launched.clear()
            prompt = prefix + more
            answer, cached = await asked(directory, kind, settings, prompt, beside=beside)
            assert is_greedy(model, prompt, answer)
            assert bool(cached) == bool(number)
            assert (max(launched) > 256 + 32) == (settings is auto and not (beside or number > 1))

    play(scene())
