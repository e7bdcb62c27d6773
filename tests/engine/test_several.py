"""Several models on one mlx thread: they take turns, share the memory and the cold tier, come and
go beside each other's streams."""

import asyncio
import gc
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from omlx_server.compute.hardware import device
from omlx_server.core.memory.guard import Relief
from omlx_server.core.memory.ledger import Ledger
from omlx_server.engine.client.model_client import GeneratorClient
from omlx_server.engine.memory.account import MemoryWatch
from omlx_server.engine.messages import EngineState
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.tiers import Tiers
from omlx_server.errors import InternalError, ModelUnavailable, NoMemory, Unavailable
from omlx_server.models.locate import Located
from omlx_server.process.apply import change_instances
from omlx_server.settings import Settings
from omlx_server.store.files import Files
from tests.engine.running import CrashingScheduler, collect, idle, request, some, until
from tests.engine.several import KINDS, MB, PROMPTS, Several, directory, held, play, several

__all__ = ["directory"]


def test_streams_of_all_models_go_on_beside_each_other(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            clients = [await house.load(kind) for kind in KINDS]
            asked = [
                await client.submit(request(f"{kind}-{i}", prompt, 60))
                for i, prompt in enumerate(PROMPTS)
                for kind, client in zip(KINDS, clients, strict=True)
            ]
            answers = await asyncio.gather(*map(collect, asked))
            for (prompt, kind), answer in zip(product(PROMPTS, KINDS), answers, strict=True):
                assert len(answer) == 60 and house.is_right(kind, prompt, answer)

    play(scene())


def test_models_that_are_at_work_know_their_part_of_the_device(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            clients = [await house.load(kind) for kind in KINDS[:2]]
            loops = house.engine._engine._step_loops.values()
            one, other = (d.instance.scheduler.prefill_order.predictions for d in loops)
            streams = [
                await client.submit(request(str(i), PROMPTS[i], 20_000))
                for i, client in enumerate(clients)
            ]
            for stream in streams:
                await some(stream, 5)
            assert (one.device_part, other.device_part) == (0.5, 0.5)
            streams[1].close()
            await until(lambda: not clients[1].status.load.running)
            await collect(await clients[0].submit(request("alone", PROMPTS[2], 3)))
            assert one.device_part == 1.0
            streams[0].close()

    play(scene())


def test_models_come_and_go_while_another_one_answers(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            first = await house.load("llama")
            stream = await first.submit(request("long", PROMPTS[0], 20_000))
            for kind in KINDS[1:]:
                client = await house.load(kind)
                got = await collect(await client.submit(request(kind, PROMPTS[1])))
                assert got == house.oracle(kind, PROMPTS[1], 6)
                await client.unload()
            assert first.status.load.running == 1, "it was to go on all the while"
            assert house.is_right("llama", PROMPTS[0], await some(stream, 600))
            stream.close()

    play(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_model_held_is_given_back(directory: Path, kind: str) -> None:
    def active() -> int:
        device.wait()
        device.drain_pool()
        return device.active_memory()

    async def scene() -> None:
        async with several(directory) as house:
            other = await house.load("llama")
            await collect(await other.submit(request("warm", PROMPTS[0])))
            before = await house.engine.call(active)
            for number in range(2):
                client = await house.load(kind)
                await collect(await client.submit(request(f"a{number}", PROMPTS[1], 40)))
                held = await house.engine.call(active)
                assert held - before > 100_000
                await client.unload()
                after = await house.engine.call(active)
                assert after - before <= 0.03 * (held - before)
            assert len(house.account.shares) == 1

    play(scene())


def test_the_account_of_all_agrees_with_mlx(directory: Path) -> None:
    def differs(house: Several) -> float:
        device.wait()
        return house.account.held().drift(device.active_memory() - outside)

    gc.collect()
    outside = 0

    async def scene() -> None:
        nonlocal outside
        async with several(directory) as house:
            outside = await house.engine.call(device.active_memory)
            clients = [await house.load(kind) for kind in ("llama", "gemma3_text")]
            for number in range(3):
                for client in clients:
                    await collect(
                        await client.submit(request(f"{number}{id(client)}", PROMPTS[number]))
                    )
            await until(lambda: all(idle(client) for client in clients))  # type: ignore[arg-type]
            assert abs(await house.engine.call(lambda: differs(house))) < 0.02
            await clients[0].unload()
            assert abs(await house.engine.call(lambda: differs(house))) < 0.02

    play(scene())


def test_what_a_model_kept_comes_back_from_the_cold_tier_with_it(
    directory: Path, tmp_path: Path
) -> None:
    cache = {"cold_dir": str(tmp_path / "kv"), "cold_min_free_disk": 0, "block_tokens": 16}

    async def scene() -> None:
        async with several(directory, cache=cache) as house:
            prompt = [*PROMPTS[3], *PROMPTS[2], *PROMPTS[1]]
            for kind in KINDS[::3]:  # full attention, and recurrent states
                client = await house.load(kind)
                cold = await collect(await client.submit(request(f"cold-{kind}", prompt)))
                await client.unload(10)
                client = await house.load(kind)
                generation = await client.submit(request(f"warm-{kind}", [*prompt, 5]))
                warm = await collect(generation)
                assert cold == house.oracle(kind, prompt, 6)
                assert warm == house.oracle(kind, [*prompt, 5], 6)
                assert generation.admitted is not None
                assert generation.admitted.cached > len(prompt) // 2
                await client.unload()

    play(scene())


def test_two_models_share_one_cold_tier(directory: Path, tmp_path: Path) -> None:
    cache = {"cold_dir": str(tmp_path / "kv"), "cold_min_free_disk": 0, "cold_write_through": True}

    async def scene() -> None:
        async with several(directory, cache=cache) as house:
            clients = [await house.load(kind) for kind in ("llama", "qwen3")]
            tiers = [await client.ask(lambda instance: instance.tiers.cold) for client in clients]
            assert tiers[0] is tiers[1] is not None
            prompt = PROMPTS[3] * 3
            for client in clients:
                await collect(await client.submit(request(f"x{id(client)}", prompt)))
            cold = await house.engine.call(lambda: house.instances.cold)
            assert cold is tiers[0]
            await until(lambda: bool(house.engine.cold and house.engine.cold.written >= 6))

    play(scene())


def test_a_cold_tier_is_told_of_as_long_as_it_is_there(directory: Path, tmp_path: Path) -> None:
    """Also when no model is, of which one could ask."""
    cache = {"cold_dir": str(tmp_path / "kv"), "cold_min_free_disk": 0, "block_tokens": 16}

    async def scene() -> None:
        async with several(directory, cache=cache) as house:
            memory_only = Settings.of({"cache": {**cache, "hot_cache_only": True}})
            assert house.engine.cold is None
            await ask_once_and_unload(house)
            await until(lambda: house.cold_blocks > 6)
            await house.engine.call(house.instances.clear_cold)
            await until(lambda: house.cold_blocks == 0)
            await ask_once_and_unload(house)
            await until(lambda: house.cold_blocks > 6)
            await house.engine.call(partial(change_instances, house.instances, memory_only))
            await until(lambda: house.engine.cold is None)
            await ask_once_and_unload(house)
            assert house.engine.cold is None

    play(scene())


def test_what_a_model_has_left_to_be_written_is_on_the_account_until_it_is(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {"cold_dir": str(tmp_path / "kv"), "cold_min_free_disk": 0, "block_tokens": 16}
    disk, put = threading.Event(), Files.put

    def slowly(self: Files, *block: Any) -> None:
        assert disk.wait(60)
        put(self, *block)

    monkeypatch.setattr(Files, "put", slowly)

    async def scene() -> None:
        async with several(directory, cache=cache) as house:
            outside = await house.engine.call(active)
            await ask_once_and_unload(house)
            held = await house.engine.call(house.account.held)
            assert held.held == held.pending > 0
            left = await house.engine.call(active) - outside
            assert held.pending <= left < 1.5 * held.pending  # buffers of a toy are rounded up
            await until(lambda: told(house) == (held.pending, held.pending))
            disk.set()
            await until(lambda: told(house) == (0, 0))
            assert house.engine.cold is not None and house.engine.cold.written > 6
            assert await house.engine.call(active) - outside < 0.5 * held.pending

    def active() -> int:
        gc.collect()
        device.wait()
        return device.active_memory()

    def told(house: Several) -> tuple[int, int]:
        """As health and metrics tell it: on the account, and in the queue."""
        assert house.engine.memory is not None and house.engine.cold is not None
        return house.engine.memory.ledger.pending, house.engine.cold.queued

    play(scene())


async def ask_once_and_unload(house: Several) -> None:
    model = await house.load("llama")
    await collect(await model.submit(request("once", PROMPTS[3] * 3)))
    await model.unload(5.0)


def test_hot_tiers_of_models_at_rest_shrink_first(directory: Path) -> None:
    limit = {"limit": 8 * MB}

    async def scene() -> None:
        async with several(directory, memory=limit) as house:
            old, new = await house.load("llama"), await house.load("qwen3")
            for number in range(6):
                prompt = [(number * 31 + j) % 190 + 1 for j in range(600)]
                await collect(await old.submit(request(f"o{number}", prompt, 2)))
            kept = await old.ask(held)
            assert kept > MB
            for number in range(14):
                prompt = [(number * 17 + j * 3) % 190 + 1 for j in range(1200)]
                got = await collect(await new.submit(request(f"n{number}", prompt, 2)))
                assert got == house.oracle("qwen3", prompt, 2)
            mine, theirs = await new.ask(held), await old.ask(held)
            assert theirs < kept / 2 < mine
            assert mine + theirs <= 8 * MB

    play(scene())


def test_two_models_that_outgrow_the_memory_together_both_come_to_their_end(
    directory: Path,
) -> None:
    """Each fits alone; together the newest goes back to its blocks for a while."""

    def preempted(instance: ModelInstance) -> int:
        assert instance.watch is not None
        return instance.watch.guard.used[Relief.PREEMPT]

    async def scene() -> None:
        async with several(directory, memory={"limit": 2_500_000}) as house:
            one, two = await house.load("llama"), await house.load("qwen3")
            asked = [
                await client.submit(request(f"{name}{i}", PROMPTS[i], 400))
                for i in range(2)
                for name, client in (("one", one), ("two", two))
            ]
            answers = await asyncio.gather(*map(collect, asked))
            pairs = product(PROMPTS[:2], ("llama", "qwen3"))
            for (prompt, kind), answer in zip(pairs, answers, strict=True):
                assert len(answer) == 400 and house.is_right(kind, prompt, answer)
            assert await one.ask(preempted) + await two.ask(preempted) > 0

    play(scene())


def test_a_request_that_fits_no_more_asks_others_to_leave(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory, memory={"limit": 3 * MB}) as house:
            others = [await house.load(kind) for kind in ("qwen3", "gemma3_text")]

            async def make_way() -> bool:
                if not others:
                    return False
                await others.pop().unload()
                return True

            client = await house.load("llama", make_way)
            prompt = [j % 190 + 1 for j in range(1900)]
            assert await collect(await client.submit(request("long", prompt, 3))) == house.oracle(
                "llama", prompt, 3
            )
            left = len(others)
            assert left < 2
            with pytest.raises(NoMemory):
                await client.submit(request("longer", prompt * 2, 3))
            assert len(others) == left, "nobody leaves for what would not fit alone"

    play(scene())


def test_the_same_weights_twice_beside_one_cold_tier(directory: Path, tmp_path: Path) -> None:
    """Two names of one model have one namespace: neither takes the other's blocks away."""
    shutil.copytree(directory / "llama", tmp_path / "twin")
    cache = {"cold_dir": str(tmp_path / "kv"), "cold_min_free_disk": 0, "block_tokens": 16}

    async def scene() -> None:
        async with several(directory, cache=cache) as house:
            client = await house.load("llama")
            for prompt in PROMPTS:
                await collect(await client.submit(request(f"{len(prompt)}", prompt * 3)))
            await client.unload(10)
            twins = [await house.load("llama"), await house.load("llama", path=tmp_path / "twin")]
            asked = [
                await twin.submit(request(f"{i}-{len(prompt)}", [*prompt * 3, 7]))
                for i, twin in enumerate(twins)
                for prompt in PROMPTS
            ]
            answers = await asyncio.gather(*map(collect, asked))
            assert answers[:4] == answers[4:]
            assert answers[0] == house.oracle("llama", [*PROMPTS[0] * 3, 7], 6)

    play(scene())


def test_a_pin_of_the_same_weights_is_saved_by_whichever_name_it_was_asked(
    directory: Path, tmp_path: Path
) -> None:
    shutil.copytree(directory / "llama", tmp_path / "twin")
    cache = {"cold_dir": str(tmp_path / "kv"), "cold_min_free_disk": 0, "block_tokens": 16}
    prompt = tuple(PROMPTS[3] * 3)

    async def scene() -> None:
        async with several(directory, cache=cache) as house:
            board, call = house.instances.pins, house.engine.call
            await house.load("llama")
            twin = await house.load("llama", path=tmp_path / "twin")
            await collect(await twin.submit(request("x", prompt)))
            pin = await twin.ask(lambda instance: instance.pin(prompt, b"", "twin"))
            assert pin is not None and await twin.ask(lambda instance: instance.tiers.cold) is None
            report = await call(partial(board.save, pin, b""))
            assert report.hot_tokens == pin.tokens > 200
            assert await call(partial(board.reports, b"")) == [report]
        async with several(directory, cache=cache) as house:
            await house.load("llama")
            await until(lambda: bool(house.instances.pins.reports(b"")))

    play(scene())


def test_prompts_of_several_models_stay_within_the_limit(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fits, together they do not: what is let in is a promise to the others as well."""
    most, begin = [0], MemoryWatch.begin

    def watched(watch: MemoryWatch, held: Ledger, features: int = 0) -> None:
        begin(watch, held, features)
        most[0] = max(most[0], watch.share.account.held().held)

    async def scene() -> None:
        monkeypatch.setattr(MemoryWatch, "begin", watched)
        async with several(directory, memory={"limit": 4_000_000}) as house:
            clients = [await house.load(kind) for kind in ("llama", "qwen3")]
            prompt = [j % 190 + 1 for j in range(2600)]
            asked = [await c.submit(request(f"{id(c)}", prompt, 3)) for c in clients]
            answers = await asyncio.gather(*map(collect, asked))
            assert answers == [house.oracle(kind, prompt, 3) for kind in ("llama", "qwen3")]

    play(scene())
    assert 2_000_000 < most[0] <= 4_000_000


def test_an_unload_that_goes_wrong_leaves_nothing_behind(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tiers: Tiers, seconds: float) -> Iterator[None]:
        yield
        raise ZeroDivisionError("planted")

    async def scene() -> None:
        async with several(directory) as house:
            stays, goes = await house.load("llama"), await house.load("qwen3")
            monkeypatch.setattr(Tiers, "write_before_close", broken)
            with pytest.raises(ZeroDivisionError):
                await goes.unload()
            monkeypatch.undo()
            assert house.account.weights == stays.weight_bytes
            assert len(await collect(await stays.submit(request("y", [1, 2])))) == 6
            again = await house.load("qwen3")
            assert len(await collect(await again.submit(request("z", [1, 2])))) == 6

    play(scene())


def test_what_was_counted_stays_counted(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            for number in range(1, 4):
                client = await house.load("llama")
                assert house.engine.counted["llama"].cache.budget > 0
                for name in "ab":
                    generation = await client.submit(request(f"{number}{name}", PROMPTS[0]))
                    await collect(generation)
                await client.unload()
                gone = house.engine.counted["llama"].cache
                assert gone.queried_tokens == 2 * number * (len(PROMPTS[0]) - 1)
                assert gone.hit_tokens == number * (len(PROMPTS[0]) - 1)
                assert (gone.nbytes, gone.blocks, gone.budget) == (0, 0, 0)

    play(scene())


def test_a_model_that_can_not_be_loaded_leaves_nothing_behind(
    directory: Path, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            client = await house.load("llama")
            bad = GeneratorClient(house.engine)
            with pytest.raises(ModelUnavailable):
                await bad.load(house.instances.making(Located(tmp_path, ("none",)), 5 * MB))
            assert bad.status.state is EngineState.FAILED
            with pytest.raises(Unavailable):
                await bad.submit(request("x", [1]))
            assert house.account.weights == client.weight_bytes
            assert len(await collect(await client.submit(request("y", [1, 2])))) == 6

    play(scene())


def test_a_load_that_is_given_up_leaves_nothing_behind(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            client = await house.load("llama")
            coming = asyncio.create_task(house.load("qwen3_next"))
            await until(lambda: len(house.account.shares) == 2)
            coming.cancel()
            await until(lambda: len(house.account.shares) == 1)
            assert len(await collect(await client.submit(request("y", [1, 2])))) == 6

    play(scene())


def test_requests_of_a_model_that_leaves_are_told(directory: Path) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            client, other = await house.load("llama"), await house.load("qwen3")
            mine = await client.submit(request("mine", PROMPTS[0], 5000))
            await some(mine, 3)
            await client.unload()
            with pytest.raises(InternalError, match="unloaded"):
                await collect(mine)
            with pytest.raises(Unavailable):
                await client.submit(request("late", [1]))
            assert len(await collect(await other.submit(request("theirs", [1, 2])))) == 6

    play(scene())


def test_a_model_that_crashes_for_good_takes_no_other_with_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with several(directory) as house:
            other = await house.load("qwen3")
            stream = await other.submit(request("long", PROMPTS[0], 800))
            with monkeypatch.context() as patch:
                patch.setattr("omlx_server.engine.model_instance.Scheduler", CrashingScheduler)
                bad = await house.load("llama")
                CrashingScheduler.crashes = 3
                with pytest.raises(InternalError):
                    await collect(await bad.submit(request("x", [1, 2, 3])))
                await until(lambda: bool(house.failed))
            assert house.failed == [("llama", "the engine crashed 3 times")]
            assert bad.status.state is EngineState.FAILED
            with pytest.raises(Unavailable):
                await bad.submit(request("y", [1]))
            await bad.unload()
            again = await house.load("llama")
            assert len(await collect(await again.submit(request("z", [1, 2])))) == 6
            answer = await collect(stream)
            assert len(answer) == 800 and house.is_right("qwen3", PROMPTS[0], answer)

    play(scene())


def test_answers_are_never_ahead_while_two_are_at_work(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device works for one model at a time, so that what a step takes can be told."""
    out = list[int]()
    launch = ModelInstance.launch

    def watched(instance: ModelInstance, step: Any) -> Any:
        launched = launch(instance, step)
        out.append(1)
        return launched

    read = ModelInstance.take_tokens

    def seen(instance: ModelInstance, launched: Any) -> Any:
        out.append(-1)
        return read(instance, launched)

    async def scene() -> None:
        async with several(directory) as house:
            one, two = await house.load("llama"), await house.load("qwen3")
            asked = [await c.submit(request(f"{id(c)}", PROMPTS[0], 5000)) for c in (one, two)]
            await asyncio.gather(*(some(generation, 5) for generation in asked))
            monkeypatch.setattr(ModelInstance, "launch", watched)
            monkeypatch.setattr(ModelInstance, "take_tokens", seen)
            await asyncio.gather(*(some(generation, 50) for generation in asked))
            monkeypatch.undo()
            for generation in asked:
                generation.close()
        steps = out[out.index(1) :]
        assert len(steps) > 100
        assert all(a + b == 0 for a, b in zip(steps[::2], steps[1::2], strict=False))

    play(scene())


def test_a_stopping_engine_leaves_nobody_waiting(directory: Path) -> None:
    async def scene() -> None:
        house = Several(directory)
        await house.engine.start()
        clients = [await house.load(kind) for kind in ("llama", "qwen3")]
        asked = [await c.submit(request(f"s{id(c)}", PROMPTS[0], 100_000)) for c in clients]
        answers = [asyncio.create_task(collect(generation)) for generation in asked]
        coming = asyncio.create_task(house.load("qwen3_next"))
        await asyncio.sleep(0.01)
        await house.engine.stop()
        found = await asyncio.gather(*answers, coming, return_exceptions=True)
        assert all(isinstance(one, InternalError) for one in found[:2])
        assert not isinstance(found[2], InternalError)
        for generation in asked:
            generation.close()

    play(scene())
