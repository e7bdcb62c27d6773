"""The memory as clients and operators see it: refusals with the account, health, metrics; and whose
turn it is when several keys ask.

One server has room for two conversations of 450 tokens, or for one of 1,200.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from omlx_server.api.access.tenant import client_of
from omlx_server.api.context import CONTEXT
from omlx_server.api.metrics.engine import memory_metrics
from omlx_server.compute.launched import Launched
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.memory.ledger import Ledger, MemoryReport
from omlx_server.core.step import Step
from omlx_server.settings import Settings
from omlx_server.wiring import model_factory as engine
from omlx_server.wiring.context import make_context
from tests.api.description.judge import events as sse_fields
from tests.api.fixed import fixed_models
from tests.api.harness import (
    CHAT,
    Json,
    ServerProcess,
    assert_envelope,
    serving,
    stream_events,
    text_of,
    wait_for,
)
from tests.api.moments import Open, Place, opened, play, slow
from tests.api.stories import metrics

__all__ = ["opened"]

LINES = ("weights", "live", "blocks", "checkpoints", "pending", "step", "pool")
BESIDE = ("grammars", "token_ids", "responses", "bodies", "resident")
LIMIT = 1_200_000
A, B = "the-key-of-many", "the-key-of-one"
LONG = "word " * 800
STARVES = 14  # tokens of an answer for which the memory is missing


def relief(name: str) -> str:
    return f'omlx_memory_relief_total{{kind="{name}"}}'


def chat(text: str, tokens: int) -> tuple[str, Json]:
    return CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}


def completion(text: str, tokens: int) -> tuple[str, Json]:
    return "/v1/completions", {"prompt": text, "max_tokens": tokens}


def response(text: str, tokens: int) -> tuple[str, Json]:
    return "/v1/responses", {"input": text, "max_output_tokens": tokens}


def message(text: str, tokens: int) -> tuple[str, Json]:
    return "/v1/messages", chat(text, tokens)[1]


Asks = Callable[[str, int], tuple[str, Json]]
APIS: tuple[Asks, ...] = (chat, completion, response, message)
every_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__)


def body(fields: Json, **more: Any) -> Json:
    return {"model": "tiny", "temperature": 0, "ignore_eos": True, **fields, **more}


@pytest.fixture(scope="module")
def small(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sets = [
        f"models.dirs={tiny_models}",
        f"memory.limit={LIMIT}B",
        "memory.activation_reserve=64KB",
        "scheduler.max_batch_size=2",
        "cache.hot_cache_only=true",
        f"auth.api_keys={A},{B}",
    ]
    with serving("tiny", tmp_path_factory.mktemp("small"), *sets) as server:
        server.http.headers["Authorization"] = f"Bearer {A}"
        wait_for(lambda: account(server)["weights"])
        yield server


def account(server: ServerProcess) -> Json:
    found: Json = server.http.get(f"{server.url}/health").json()["memory"]
    return found


def post(server: ServerProcess, asked: tuple[str, Json], **more: Any) -> httpx.Response:
    path, fields = asked
    return server.http.post(server.url + path, json=body(fields, **more))


# -- too little ------------------------------------------------------------------------------


@every_api
def test_what_never_fits_is_refused_with_the_account(small: ServerProcess, api: Asks) -> None:
    """As a plain error, streamed or not; who fits is answered before and after."""
    song = small.canary()
    before = metrics(small)[relief("reject")]
    for stream in (False, True):
        refused = post(small, api(LONG, 8), stream=stream)
        if api is message:
            assert refused.status_code == 529
            told = refused.json()["error"]
            assert told["type"] == "overloaded_error"
        else:
            told = assert_envelope(refused, 503)
            assert told["code"] == "insufficient_memory"
        for part in ("weights 352 KB", "of 1.2 MB", "memory.limit"):
            assert part in told["message"]
    wait_for(lambda: metrics(small)[relief("reject")] == before + 2)
    assert small.canary() == song


def test_a_list_of_prompts_is_refused_for_one_that_never_fits(small: ServerProcess) -> None:
    asked = completion("", 8)
    refused = post(small, (asked[0], {**asked[1], "prompt": ["Hi", LONG, "Ho"]}))
    assert assert_envelope(refused, 503)["code"] == "insufficient_memory"
    small.wait_idle()


def test_who_grows_too_large_together_takes_turns(small: ServerProcess) -> None:
    """Nobody's answer is another one for that, and it is counted by vLLM's name as well."""
    asked = [chat(f"{name} sings a long song.", 500) for name in ("Ann", "Bob")]
    alone = [text_of(post(small, one).json()) for one in asked]
    before = metrics(small)
    with ThreadPoolExecutor() as pool:
        together = [text_of(r.json()) for r in pool.map(lambda one: post(small, one), asked)]
    assert together == alone
    after = metrics(small)
    went = after[relief("preempt")] - before[relief("preempt")]
    assert went > 0
    names = "vllm:num_preemptions_total", relief("preempt")
    assert after[names[0]] == after[names[1]]


# -- health and metrics ----------------------------------------------------------------------


def test_the_account_is_in_health_and_metrics(small: ServerProcess) -> None:
    small.chat("A story to be kept. " * 20, max_tokens=8)
    small.wait_idle()
    wait_for(lambda: account(small)["live"] == 0 and abs(account(small)["drift"]) < 0.02)
    memory = account(small)
    assert set(memory) == {"limit", *LINES, *BESIDE, "machine", "pressure", "drift"}
    assert memory["limit"] == LIMIT
    assert memory["weights"] == 351_744
    assert memory["blocks"] > 0
    assert sum(memory[line] for line in LINES) <= LIMIT
    ready = small.http.get(f"{small.url}/health/ready").json()
    assert ready["memory"]["weights"] == memory["weights"]
    assert [engine["model"] for engine in ready["engines"]] == [small.model]

    found = metrics(small)
    assert found["omlx_memory_limit_bytes"] == LIMIT
    assert abs(found["omlx_memory_drift_ratio"]) < 0.02
    told = {line: found[f'omlx_memory_bytes{{kind="{line}"}}'] for line in LINES}
    still = "weights", "blocks", "checkpoints"
    assert [told[line] for line in still] == [memory[line] for line in still]


def test_there_is_no_account_while_the_model_loads(opened: Open, tiny_models: Path) -> None:
    loaded = threading.Event()

    async def memory(place: Place) -> Json:
        found: Json = (await place.http.get("/health")).json()["memory"]
        return found

    async def scene() -> None:
        async with opened(slow(tiny_models / "org" / "tiny", loaded)) as place:
            early = await memory(place)
            assert early is None or early["weights"] == 0
            loaded.set()
            await place.ready()
            await until(lambda: place.engine.whole.memory)
            assert (await memory(place))["weights"] == 351_744
            assert "omlx_memory" in (await place.http.get("/metrics")).text

    play(scene())


class Reports:
    """A collector of one report."""

    def collect(self) -> Iterator[Metric]:
        reliefs = (("pool", 3), ("preempt", 7))
        ledger = Ledger(150, weights=30, live=7, pool=1, grammars=2)
        return memory_metrics(MemoryReport(ledger, -0.04, reliefs, resident=500))


def test_a_report_becomes_metrics() -> None:
    registry = CollectorRegistry()
    registry.register(Reports())
    found = dict(
        line.rsplit(" ", 1)
        for line in generate_latest(registry).decode().splitlines()
        if not line.startswith("#")
    )
    expected = {
        'omlx_memory_bytes{kind="weights"}': 30,
        'omlx_memory_bytes{kind="live"}': 7,
        'omlx_memory_bytes{kind="pool"}': 1,
        'omlx_memory_bytes{kind="grammars"}': 2,
        "omlx_memory_resident_bytes": 500,
        "omlx_memory_limit_bytes": 150,
        "omlx_memory_drift_ratio": -0.04,
        relief("pool"): 3,
        relief("preempt"): 7,
    }
    assert {name: float(found[name]) for name in expected} == expected
    assert list(memory_metrics(None)) == []


# -- when an answer has begun ----------------------------------------------------------------


class StarvingRunner(ModelRunner):
    """There is no memory for the tenth token of an answer of STARVES tokens."""

    def decode(self, step: Step) -> Launched:
        for row in self._batch.rows:
            if row.sampling.max_tokens == STARVES and row.generated > 9:
                raise RuntimeError("[malloc_or_wait] Unable to allocate 1 bytes.")
        return super().decode(step)


async def until(look: Callable[[], object]) -> None:
    while not look():
        await asyncio.sleep(0.001)


async def ask(place: Place, asked: tuple[str, Json], **more: Any) -> httpx.Response:
    return await place.http.post(asked[0], json=body(asked[1], **more))


@every_api
def test_an_answer_that_breaks_off_for_memory_says_so(
    opened: Open, monkeypatch: pytest.MonkeyPatch, api: Asks
) -> None:
    """In the words of each API, whole and in a stream that has begun; others go on."""
    monkeypatch.setattr(engine, "ModelRunner", StarvingRunner)

    async def scene() -> None:
        async with opened() as place:
            await place.ready()
            song = (await ask(place, chat("Sing.", 200))).json()["choices"]
            await until(lambda: not place.engine.status.load.running)
            beside = asyncio.create_task(ask(place, chat("Sing.", 200)))
            await until(lambda: place.engine.status.load.running)
            whole = await ask(place, api("Hi", STARVES))
            assert whole.status_code == (529 if api is message else 503)
            assert "weights" in whole.json()["error"]["message"]
            judge(api, await ask(place, api("Hi", STARVES), stream=True))
            assert (await beside).json()["choices"] == song
            health = (await place.http.get("/health")).json()
            assert health["memory"]["weights"] == 351_744

    play(scene())


def judge(api: Asks, streamed: httpx.Response) -> None:
    """The end of a stream."""
    assert streamed.status_code == 200
    if api in (chat, completion):
        *chunks, last = stream_events(streamed.text)
        assert chunks and all("choices" in chunk for chunk in chunks)
        assert last["error"]["code"] == "insufficient_memory"
        assert "weights" in last["error"]["message"]
        return
    *_, last = sse_fields(streamed.text)
    if api is message:
        assert last["event"] == "error"
        assert '"overloaded_error"' in last["data"] and "weights" in last["data"]
    else:
        assert last["event"] == "response.failed"
        assert '"server_error"' in last["data"] and "weights" in last["data"]
        assert '"insufficient_memory"' in streamed.text


# -- fairness --------------------------------------------------------------------------------


@every_api
def test_a_key_with_many_requests_does_not_keep_another_waiting(
    small: ServerProcess, api: Asks
) -> None:
    """The other one's prompt is longer and comes last: nothing else speaks for it."""
    text = itertools.count()

    def send(key: str, words: int, done: list[str]) -> None:
        asked = api(f"{api.__name__} {next(text)} is told. " * words, 120)
        headers = {"authorization": f"Bearer {key}"}
        found = httpx.post(
            small.url + asked[0], json=body(asked[1]), headers=headers, timeout=60, trust_env=False
        )
        assert found.status_code == 200, found.text
        done.append(key)

    def scene() -> list[str]:
        """Whose answers came, one after the other; or nothing, where the many were not there
        together, as on a machine that pauses."""
        done: list[str] = []
        small.wait_idle()
        with ThreadPoolExecutor(16) as pool:
            sent = [pool.submit(send, A, 12, done) for _ in range(7)]
            wait_for(lambda: small.load()["waiting"] >= 5 or done)
            was_crowded = not done
            sent.append(pool.submit(send, B, 14, done))
        for one in sent:
            one.result()
        return done if was_crowded else []

    done = next(filter(None, (scene() for _ in range(5))))
    assert done.index(B) < 6, done


def test_the_owner_of_a_request_is_a_digest_of_its_key() -> None:
    def owner(keys: list[str], key: str, header: str = "authorization") -> bytes:
        context = make_context(fixed_models(), Settings.of({"auth": {"api_keys": keys}}))
        value = f"Bearer {key}" if header == "authorization" else key
        headers = [(header.encode(), value.encode())]
        return client_of(Request({"type": "http", CONTEXT: context, "headers": headers}))

    assert owner([], A) == b""
    assert owner([A], A) != b""
    assert owner([A, B], A) != owner([A, B], B)
    assert owner([A, B], A) == owner([A, B], A, "x-api-key")
    assert A.encode() not in owner([A, B], A)
