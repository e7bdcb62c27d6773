"""The composition root: the only place that knows every part, and puts them together.

A mode is an object that is made here or not; nothing below asks which mode it is in.
"""

import asyncio
import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from omlx_server.api.app import create_app
from omlx_server.api.context import ApiContext
from omlx_server.api.marks import strips_reasoning
from omlx_server.api.metrics import Metrics
from omlx_server.api.served import SamplingDefaults, ServedModel, ServedModels
from omlx_server.api.server import HttpServer
from omlx_server.compute import FAST_BLAS, device
from omlx_server.compute.fingerprint import fingerprint
from omlx_server.compute.kv.choice import make_scheme
from omlx_server.compute.loader import LoadedModel, load
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.runner import ModelRunner
from omlx_server.core import memory
from omlx_server.core.no_cache import NoCache
from omlx_server.core.pins import Pins
from omlx_server.core.prefix_cache import Budget, PrefixCache
from omlx_server.core.scheduler import Limits
from omlx_server.engine.archives import PrefixArchives
from omlx_server.engine.client import AsyncEngine
from omlx_server.engine.lane import Lane
from omlx_server.errors import Unavailable, UsageError
from omlx_server.models import catalogue, starter
from omlx_server.models.description import Description, describe
from omlx_server.models.locate import Located, locate
from omlx_server.models.progress import Progress
from omlx_server.settings import Loaded, Settings
from omlx_server.store.breaker import Guarded
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.store.hot import HotTier
from omlx_server.store.lock import Lock
from omlx_server.store.medium import Medium, MediumError
from omlx_server.store.remote import Apart, open_remote
from omlx_server.store.secret import secret
from omlx_server.text.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
# Of the time that a service manager gives us to end; requests have had theirs before.
_DRAIN_SECONDS = 10.0
# A call to a remote store that takes longer counts as a miss, and five of them as an outage.
_REMOTE_SECONDS = 2.0


def serve(
    loaded: Loaded, model: str, *, progress: Progress, ready: Callable[[str, str], None]
) -> int:
    """Serve one model until a signal ends it. Returns the exit code.

    `ready(url, model)` is called when the first request may come.
    """
    settings = loaded.settings
    _start_logging(settings)
    _warn_of_idle_settings(loaded)
    sock = _bind(settings.server.host, settings.server.port)
    located = find_model(model, settings, progress)
    code = uvloop.run(_serve(settings, located, sock, ready))
    _leave(code)
    return code


def find_model(name: str, settings: Settings, progress: Progress) -> Located:
    """The directory of a model: a catalogue row, a local directory or a Hugging Face id."""
    row = catalogue.find(name)
    if row is None:
        return locate(name, settings.models.dirs, settings.models.use_hf_cache)
    directory = settings.models.dirs[0]
    if device.is_cpu():
        path = starter.ensure(row, directory, variant="f32", progress=progress)
    else:
        finish = device.quantize_in_place
        path = starter.ensure(row, directory, variant="8bit", finish=finish, progress=progress)
    return Located(path, (row.name, row.full_name))


def limits(settings: Settings) -> Limits:
    scheduler, block = settings.scheduler, settings.cache.block_tokens
    best = min(max(device.prefill_chunk_tokens(), block), scheduler.max_batched_tokens)
    chosen = scheduler.prefill_chunk_tokens
    return Limits(
        max_batch_size=scheduler.max_batch_size,
        max_queue=scheduler.max_queue,
        prefill_chunk_tokens=best if chosen == "auto" else chosen,
        max_batched_tokens=scheduler.max_batched_tokens,
        halve_chunks_at=device.halve_chunks_at(),
    )


def make_engine(
    located: Located, settings: Settings, on_failure: Callable[[str], None] = _log.critical
) -> AsyncEngine:
    """An engine for a model; its thread loads it when it starts."""
    notes, remote = _notes(settings), _remote(settings)
    kv = settings.kv_cache_of(located.names)
    scheme = make_scheme(kv.scheme, kv.bits, kv.group_size)
    return AsyncEngine(
        lambda: make_lane(load(located.path, notes, scheme), settings, located, remote), on_failure
    )


def make_lane(
    loaded: LoadedModel, settings: Settings, located: Located, remote: Medium | None = None
) -> Lane:
    """One model at work. `remote` is where blocks go instead of files."""
    device.bound_pool(memory.pool_bytes(device.usable_memory()))
    budget = _budget(loaded, settings)
    codec = BlockCodec.of(loaded.model, settings.cache.block_tokens)
    if codec is None:
        _log.warning("this model has a kind of cache that is not known: it runs without reuse")
    hot: HotTier[Payload] = HotTier()
    if codec is None or not settings.cache.enabled:
        return Lane(ModelRunner(loaded), limits(settings), lambda: NoCache(budget), hot)
    pins = Pins()
    cold = _cold_tier(settings, pins, remote) if _goes_to_disk(settings) else None
    index = cold.index if cold else None
    lane = Lane(
        ModelRunner(loaded, codec, hot.get),
        limits(settings),
        lambda: PrefixCache(codec.layout, loaded.fingerprint, budget, index, pins),
        hot,
        cold,
        write_through=settings.cache.cold_write_through,
    )
    if cold is not None:
        name, size = located.names[0], codec.layout.block_size
        cold.describe(lane.cache.namespace, name, located.path, size)
    return lane


def _goes_to_disk(settings: Settings) -> bool:
    return settings.cache.enabled and not settings.cache.hot_cache_only


def _notes(settings: Settings) -> Path | None:
    """Where the fingerprints of weights are noted down."""
    return settings.cache.cold_dir / "fingerprints.json" if _goes_to_disk(settings) else None


def _remote(settings: Settings) -> Medium | None:
    """The store of bytes that is named, if any. Raises ConfigError; connects later."""
    cache = settings.cache
    url = cache.remote.get_secret_value()
    if not url or not _goes_to_disk(settings):
        return None
    medium = open_remote(url, timeout=_REMOTE_SECONDS, ttl_days=cache.cold_ttl_days)
    return Guarded(medium, _REMOTE_SECONDS)


def _cold_tier(settings: Settings, pins: Pins, remote: Medium | None) -> ColdTier | None:
    """The tier on disk or elsewhere. A directory that can't be used costs that tier, not the
    server."""
    cache = settings.cache
    root = cache.cold_dir
    try:
        lock = Lock(root)
        writable = lock.acquire()
        home = Files(root, writable=writable, min_free_bytes=cache.cold_min_free_disk)
        key = secret(root)
    except MediumError as error:
        _log.warning("%s can't be used, blocks live in memory only: %s", root, error)
        return None
    home.remember_secret(key)
    if not writable and remote is None:
        _log.warning("another server writes to %s: this one reads there, until that one ends", root)
    return ColdTier(
        Apart(remote, key) if remote else home,
        key,
        budget=cache.cold_cache_max_bytes,
        queue_bytes=cache.cold_write_queue_bytes,
        ttl_days=cache.cold_ttl_days,
        home=home,
        lock=lock if remote is None else None,
        pins=pins,
    )


def _budget(loaded: LoadedModel, settings: Settings) -> Budget:
    cache = settings.cache
    automatic = memory.hot_cache_bytes(device.usable_memory(), loaded.weight_bytes)
    hot = automatic if cache.hot_cache_max_bytes == "auto" else cache.hot_cache_max_bytes
    share = memory.checkpoint_bytes(hot)
    checkpoints = share if cache.checkpoint_max_bytes == "auto" else cache.checkpoint_max_bytes
    return Budget(
        hot,
        checkpoints,
        buffers=device.MAX_BUFFERS // 2,
    )


def make_served(located: Located, engine: AsyncEngine, settings: Settings) -> ServedModel:
    """The HTTP side of a model."""
    description = describe(located.path)
    tokenizer = Tokenizer.load(located.path)
    longest = max(len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size))
    template = ChatTemplate(tokenizer, max_chars=description.context_length * longest)
    return ServedModel(
        names=located.names,
        engine=engine,
        archives=PrefixArchives(engine, located.names[0], _whole_fingerprint(located, settings)),
        tokenizer=tokenizer,
        template=template,
        context_length=description.context_length,
        longest_token=longest,
        vocab=min(description.vocab, tokenizer.vocab_size),
        created=int(time.time()),
        strips_reasoning=strips_reasoning(template.render),
        defaults=_defaults(description, settings),
    )


def _whole_fingerprint(located: Located, settings: Settings) -> Callable[[], str]:
    """Found when it is first asked for."""
    return functools.cache(lambda: fingerprint(located.path, _notes(settings), whole=True))


def make_context(models: ServedModels, settings: Settings) -> ApiContext:
    server = settings.server
    return ApiContext(
        models=models,
        metrics=Metrics(models),
        max_body_bytes=server.max_body_bytes,
        ping_seconds=server.sse_ping_seconds,
        request_timeout_seconds=server.request_timeout_seconds,
        per_key_salt=settings.cache.salt == "per-key",
        api_keys=tuple(key.get_secret_value() for key in settings.auth.api_keys),
        allowed_hosts=_allowed_hosts(settings),
    )


async def _serve(
    settings: Settings, located: Located, sock: socket.socket, ready: Callable[[str, str], None]
) -> int:
    """Order matters: the door opens while the model loads, and answers 503 until it is there."""
    server: HttpServer

    def on_failure(problem: str) -> None:
        _log.critical("the engine has failed: %s", problem)
        server.stop(exit_code=1)

    engine = make_engine(located, settings, on_failure)
    await engine.start()
    served = await asyncio.to_thread(make_served, located, engine, settings)
    app = create_app(make_context(ServedModels([served]), settings))
    server = HttpServer(app, settings.server.shutdown_grace_seconds)
    serving = asyncio.create_task(server.run_on(sock))
    announcing = asyncio.create_task(_announce(engine, sock, located.names[0], ready))
    await serving
    announcing.cancel()
    await engine.stop(min(_DRAIN_SECONDS, settings.server.shutdown_grace_seconds))
    return server.exit_code


async def _announce(
    engine: AsyncEngine, sock: socket.socket, name: str, ready: Callable[[str, str], None]
) -> None:
    try:
        await engine.ready()
    except Unavailable:
        return  # on_failure ends the server and says why
    _log.info("%s is loaded and warm", name)
    host, port = sock.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", name)


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before anything slow happens.

    Raises:
        UsageError: somebody else has it, or the host is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise UsageError(
            f"can't listen on {host} port {port}: {error.strerror or error}",
            hint="another port: --port 8001; any free one: --port 0",
        ) from error
    return sock


def _leave(code: int) -> None:
    """End the process here: all is written and closed, and native threads of MLX that meet the
    interpreter's own end have been seen to abort it."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _allowed_hosts(settings: Settings) -> tuple[str, ...]:
    """Names by which clients may call the server; a wildcard switches the check off."""
    hosts = settings.server.allowed_hosts
    if "*" in hosts:
        return ()
    return tuple({*(host.lower() for host in hosts), settings.server.host.lower()})


def _defaults(description: Description, settings: Settings) -> SamplingDefaults:
    recommended = description.recommended
    own = SamplingDefaults(max_tokens=settings.sampling.max_tokens)
    return SamplingDefaults(
        temperature=_or(recommended.temperature, own.temperature),
        top_p=_or(recommended.top_p, own.top_p),
        top_k=int(_or(recommended.top_k, own.top_k)),
        min_p=_or(recommended.min_p, own.min_p),
        repetition_penalty=_or(recommended.repetition_penalty, own.repetition_penalty),
        max_tokens=own.max_tokens,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _warn_of_idle_settings(loaded: Loaded) -> None:
    """Without a cold tier, what was set for it means nothing."""
    if not loaded.settings.cache.hot_cache_only:
        return
    idle = [
        key
        for key, origin in loaded.origins.items()
        if key.startswith("cache.cold_") and origin != "default"
    ]
    if idle:
        _log.warning("cache.hot_cache_only is on, so this has no effect: %s", ", ".join(idle))


def _start_logging(settings: Settings) -> None:
    logging.basicConfig(
        level=settings.logging.level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _log.info("MLX computes on the %s", device.name())
    if device.is_cpu() and FAST_BLAS is None:
        _log.warning(
            "OpenBLAS was not found, so prompts are read up to 30 times slower; "
            "on Debian and Ubuntu: apt-get install libopenblas0-pthread"
        )
