"""Errors of the device at any launch and any wait of a crowd's work: each request ends with the
right answer, nobody is blamed, and nothing is left behind."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from omlx_server.compute.forward_parts import decoder_layers
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.prefill import Prefilled, Prefiller
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.chunk_sizes import ChunkPace
from omlx_server.core.device_errors import DeviceFault, Reaction, RecentFaults, fault_of
from omlx_server.core.dispatch_limit import DispatchLimit
from omlx_server.core.images import ImageSpan
from omlx_server.core.step import Chunk, Join
from omlx_server.core.work import Work
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import InternalError, NoMemory, Unavailable
from tests.compute.oracle import is_greedy
from tests.compute.warm_runs import tiny, tokens
from tests.engine.alone import Alone
from tests.engine.running import LIMITS, Running, collect, make_instance, request, until
from tests.sweeps import daily

COMMON = tokens("common", 20)
PROMPTS = [
    tokens("long", 45),
    [*COMMON, *tokens("one", 5)],
    [*COMMON, *tokens("two", 9)],
    tokens("short", 3),
]
MESSAGES = {
    DeviceFault.MEMORY: "[malloc] Unable to allocate 85899345920 bytes.",
    DeviceFault.RESOURCE_LIMIT: "[metal::malloc] Resource limit (499000) exceeded.",
    DeviceFault.WATCHDOG: "[METAL] Command buffer execution failed: Impacting Interactivity "
    "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
    DeviceFault.TIMEOUT: "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
    DeviceFault.INNOCENT_VICTIM: "[METAL] Command buffer execution failed: Innocent Victim of GPU "
    "Error/Recovery (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)",
    DeviceFault.HANG: "[METAL] Command buffer execution failed: Caused GPU Hang Error "
    "(00000003:kIOGPUCommandBufferCallbackErrorHang)",
    DeviceFault.INVALID_RESOURCE: "[METAL] Command buffer execution failed: Invalid Resource "
    "(00000009:kIOGPUCommandBufferCallbackErrorInvalidResource)",
    DeviceFault.SUBMISSIONS_IGNORED: "[METAL] Command buffer execution failed: Ignored (for "
    "causing prior/excessive GPU errors) "
    "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
    DeviceFault.CONTEXT_LOST: "cudaStreamSynchronize failed: an illegal memory access was "
    "encountered",
    DeviceFault.UNKNOWN: "[METAL] Command buffer execution failed: something new (0000002a)",
}
LOST = [DeviceFault.SUBMISSIONS_IGNORED, DeviceFault.CONTEXT_LOST]
KEEPS_ALL = [fault for fault in MESSAGES if fault not in LOST]


@dataclass
class FailingDevice:
    """Raises in the calls whose numbers are in `at`, from 0."""

    error: Callable[[], Exception]
    at: tuple[int, ...] = ()
    calls: int = 0

    def note_call(self) -> None:
        self.calls += 1
        if self.calls - 1 in self.at:
            raise self.error()


@contextmanager
def failing(error: Callable[[], Exception], *at: int) -> Iterator[FailingDevice]:
    fake = FailingDevice(error, at)

    def failing_first(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            fake.note_call()
            return function(*arrays)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("launch", "wait_for", "to_host"):
            patch.setattr(device, name, failing_first(getattr(device, name)))
        yield fake


def error_of(fault: DeviceFault) -> Callable[[], Exception]:
    return lambda: RuntimeError(MESSAGES[fault])


def instance_of(architecture: str) -> ModelInstance:
    return make_instance(tiny(architecture), LIMITS)


async def answers(engine: Alone) -> list[list[int] | BaseException]:
    """Some requests together, then two that begin as they did."""

    async def ask(name: str, prompts: list[list[int]]) -> list[list[int] | BaseException]:
        asked = [answer(engine, f"{name}{i}", prompt) for i, prompt in enumerate(prompts)]
        return await asyncio.gather(*asked, return_exceptions=True)

    return [*await ask("a", PROMPTS), *await ask("b", PROMPTS[:2])]


async def answer(engine: Alone, name: str, prompt: list[int]) -> list[int]:
    return await collect(await engine.submit(request(name, prompt)))


async def served(engine: Alone) -> list[list[int] | BaseException]:
    got = await asyncio.wait_for(answers(engine), 10)
    while not await engine.ask(lambda instance: instance.runner.idle):
        await asyncio.sleep(0.001)
    await engine.ask(lambda instance: instance.check_invariants())
    return got


def check_right(architecture: str, got: list[list[int] | BaseException]) -> None:
    model = tiny(architecture).model
    for prompt, answer in zip([*PROMPTS, *PROMPTS[:2]], got, strict=True):
        assert isinstance(answer, list), answer
        assert len(answer) == 6 and is_greedy(model, prompt, answer)


def run_with(
    architecture: str, error: Callable[[], Exception], *at: int, counts: str = ""
) -> FailingDevice:
    """Serve while the device fails; all answers must be right. Failures are counted as `counts`."""

    async def run() -> FailingDevice:
        async with Running(lambda: instance_of(architecture)) as engine:
            with failing(error, *at) as fake:
                check_right(architecture, await served(engine))
            strikes = sum(position < fake.calls for position in at)
            assert engine.engine.device_errors == ({counts: strikes} if counts and strikes else {})
            return fake

    return asyncio.run(run())


POLICIES = {"cpu": device_policy.CPU, "gpu": replace(device_policy.GPU, fused_widths=())}


@pytest.mark.parametrize("fault", KEEPS_ALL)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", daily(range(12), [1, 8]))
def test_a_failure_anywhere_ends_no_request(
    fault: DeviceFault, policy: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_policy, "current", lambda: POLICIES[policy])
    architecture = "llama" if first % 2 else "qwen3_next"
    position, calls = first, first + 1
    while position < calls:
        calls = run_with(architecture, error_of(fault), position, counts=fault).calls
        position += 24


@pytest.mark.parametrize("position", daily(range(60), range(3, 60, 12)))
def test_an_error_that_is_not_the_devices_blames_nobody_who_works_alone(position: int) -> None:
    run_with("llama", lambda: ValueError("planted"), position)


def test_who_fails_alone_only_once_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, probe = list[Join](), ModelRunner.probe

    def fails_once(runner: ModelRunner, join: Join, images: tuple[ImageSpan, ...] = ()) -> None:
        tries.append(join)
        if len(tries) == 1:
            raise ValueError("planted")
        probe(runner, join, images)

    monkeypatch.setattr(ModelRunner, "probe", fails_once)

    for position in range(4, 14, 2):
        run_with("llama", lambda: ValueError("planted"), position)
    assert tries


@pytest.mark.parametrize("times", range(3, 6))
def test_a_prompt_that_fails_twice_is_not_to_blame_where_none_works(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, run = [times], Prefiller.run

    def fails_at_first(prefiller: Prefiller, group: Sequence[Chunk]) -> Prefilled | None:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("planted")
        return run(prefiller, group)

    monkeypatch.setattr(Prefiller, "run", fails_at_first)

    async def serve() -> None:
        async with Running(lambda: instance_of("llama")) as engine:
            assert len(await answer(engine, "alone", PROMPTS[0])) == 6

    asyncio.run(serve())
    assert left[0] < 0


def test_every_class_is_told_by_its_message() -> None:
    for fault, message in MESSAGES.items():
        assert fault_of(RuntimeError(message)) is fault
    assert fault_of(MemoryError()) is DeviceFault.MEMORY
    assert fault_of(RuntimeError("[matmul] Last dimension of first input")) is None
    assert fault_of(ValueError("out of memory")) is None


def test_the_reaction_grows_with_each_failure_and_is_the_first_again_later() -> None:
    recent = RecentFaults()
    notes = [recent.note(DeviceFault.INNOCENT_VICTIM, now) for now in (0, 1, 2, 3)]
    assert notes == [Reaction.RETRY, Reaction.START_OVER, Reaction.LEAVE, Reaction.LEAVE]
    assert recent.note(DeviceFault.WATCHDOG, 4) is Reaction.SHORTEN
    assert recent.note(DeviceFault.INNOCENT_VICTIM, 700) is Reaction.RETRY
    assert recent.counts == {DeviceFault.INNOCENT_VICTIM: 5, DeviceFault.WATCHDOG: 1}


def test_after_the_watchdog_less_is_submitted_at_once() -> None:
    layers = len(decoder_layers(tiny("llama").model))
    pace = ChunkPace(layers, layers, ((1, 0.01), (64, 0.02)), ((0.0, 0.0),))
    limits = replace(LIMITS, dispatch=DispatchLimit(0.8, pace))

    async def run() -> None:
        async with Running(lambda: make_instance(tiny("llama"), limits)) as engine:
            with failing(error_of(DeviceFault.WATCHDOG), 5):
                check_right("llama", await served(engine))
            dispatch = await engine.ask(lambda instance: instance._limits.dispatch)
            assert dispatch is not None and dispatch.seconds == 0.4

            def reload(instance: ModelInstance) -> DispatchLimit | None:
                instance.change_limits(limits, write_through=False)
                return instance._limits.dispatch

            kept = await engine.ask(reload)
            assert kept is not None and kept.seconds == 0.4

    asyncio.run(run())


def test_a_request_ends_when_memory_is_missing_again_and_again() -> None:
    async def run() -> None:
        async with Running(lambda: instance_of("llama")) as engine:
            with failing(error_of(DeviceFault.MEMORY), *range(200)), pytest.raises(NoMemory):
                await asyncio.wait_for(answer(engine, "a", PROMPTS[0]), 10)
            assert await answer(engine, "b", PROMPTS[1])

    asyncio.run(run())


def failing_job(instance: ModelInstance) -> Work[None]:
    yield
    raise RuntimeError(MESSAGES[DeviceFault.WATCHDOG])


def test_a_job_that_the_device_fails_ends_with_a_reason_and_others_go_on() -> None:
    async def run() -> None:
        async with Running(lambda: instance_of("llama")) as engine:
            answered = asyncio.create_task(answer(engine, "a", PROMPTS[0]))
            with pytest.raises(Unavailable, match="the device failed \\(watchdog\\)"):
                await engine.work(failing_job)
            assert await answered
            assert engine.engine.device_errors == {"watchdog": 1}
            assert await engine.ask(lambda instance: instance._halvings) == 1

    asyncio.run(run())


@pytest.mark.parametrize("fault", LOST)
def test_a_device_that_is_lost_ends_the_engine_and_says_why(fault: DeviceFault) -> None:
    async def run() -> None:
        running = Running(lambda: instance_of("llama"))
        async with running as engine:
            with failing(error_of(fault), 20):
                got = await asyncio.wait_for(answers(engine), 10)
            await until(lambda: bool(running.failures))
        assert any(isinstance(answer, InternalError) for answer in got)
        assert fault in running.failures[0]

    asyncio.run(run())
