"""Checks a cluster as its rank 0. The other ranks are the real ones: they compare versions and the
model, connect, and measure sums instead of loading the model."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from omlx_server.compute.model.fingerprint import fingerprint
from omlx_server.core.cluster.handshake import Welcome
from omlx_server.core.cluster.state import RankState, RankStatus
from omlx_server.doctor import network
from omlx_server.doctor.cluster import findings
from omlx_server.doctor.cluster.findings import LARGE_BYTES, SMALL_BYTES, Sizes
from omlx_server.doctor.finding import Finding, Level
from omlx_server.errors import UsageError
from omlx_server.models.locate import Located
from omlx_server.wiring.cluster.gathering import Gathering
from omlx_server.wiring.cluster.identity import free_addresses, versions
from omlx_server.wiring.cluster.options import NO_PORT, GatheringOptions
from omlx_server.wiring.cluster.starting import line_by_hand

_SUMS = (sys.executable, "-P", "-m", "omlx_server.doctor.cluster.sums")
_ROUNDS = ((SMALL_BYTES, 100), (LARGE_BYTES, 5))
MEETING_SECONDS = 30.0
"""The time for a rank to come, before it is reported as missing."""
SUMMING_SECONDS = 30.0
"""The time for ranks to connect and sum."""
_POLL_SECONDS = 0.02

Process = subprocess.Popen[str]


def checks(options: GatheringOptions, backend: str, located: Located) -> Iterator[Finding]:
    """Yield the findings on rank 0's address, each other rank, and their connections; nothing after
    a failure. All ranks end at the end."""
    logging.getLogger("omlx_server").addHandler(logging.NullHandler())  # the findings say it
    address = findings.address(options.listens_at, options.port, _why_no_address(options))
    yield address
    if address.level is Level.FAIL:
        return
    with _started() as process, closing(Gathering(options)) as gathering:
        gathering.begin(_welcome(options, located))
        states = _met(gathering)
        yield from (_rank(state, options) for state in states)
        if all(state.status is RankStatus.READY for state in states):
            yield from _sums(gathering, process, options, backend, located)


def _why_no_address(options: GatheringOptions) -> str:
    ips, port = options.hosts[0].ips, options.port
    if options.secret and not port:
        return NO_PORT
    try:
        free_addresses(ips)
    except UsageError as error:
        return error.message
    problem = network.try_port(options.listens_at, port)
    return f"{options.listens_at} port {port}: {problem}" if problem else ""


def _welcome(options: GatheringOptions, located: Located) -> Welcome:
    """Return the facts that ranks compare. The fingerprint samples the weights."""
    known_as = fingerprint(located.path)
    names = (*located.names, str(located.path))
    return Welcome(
        size=len(options.hosts),
        ips=(),
        names=names,
        fingerprint=known_as,
        kv=("none", 0, 0),
        block_tokens=0,
        has_cold=False,
        rdma=options.rdma,
    )


def _met(gathering: Gathering) -> list[RankState]:
    """Wait for the other ranks; return the state of each: ready, its first problem, or absent."""
    states: dict[int, RankState] = {}
    last = time.monotonic() + MEETING_SECONDS
    while len(states) < gathering.size - 1 and time.monotonic() < last:
        for state in gathering.states:
            if state.problem or state.status is RankStatus.READY:
                states.setdefault(state.rank, state)  # the first problem counts
        time.sleep(_POLL_SECONDS)
    return [states.get(state.rank, state) for state in gathering.states]


def _rank(state: RankState, options: GatheringOptions) -> Finding:
    leader = f"{options.listens_at}:{options.port or 'PORT'}"
    by_hand = line_by_hand(options, state.rank, leader) if options.secret else ""
    equal = ", ".join(f"{name} {version}" for name, version in versions())
    host = options.hosts[state.rank]
    return findings.rank(state, host, equal, leader, by_hand, MEETING_SECONDS)


def _sums(
    gathering: Gathering,
    process: Process,
    options: GatheringOptions,
    backend: str,
    located: Located,
) -> Iterator[Finding]:
    addresses = gathering.form(free_addresses(options.hosts[0].ips), _ROUNDS)
    order = {
        "addresses": addresses,
        "backend": backend,
        "rdma": options.rdma,
        "sums": _ROUNDS,
        "model": str(located.path),
    }
    problem = why_no_sums(gathering, process, order) if addresses else "a rank is gone again"
    if problem:
        yield findings.connected(gathering.size, backend, problem)
        return
    assert process.stdout is not None
    measured = json.loads(process.stdout.read())
    small, large = measured["seconds"]
    name, sizes = located.names[0], sizes_of(located.path)
    if why := measured["why_not_split"]:
        yield findings.not_split(name, why)
    else:
        yield findings.connected(gathering.size, backend, "")
    yield findings.latency(small, name, sizes)
    yield findings.bandwidth(large, gathering.size, name, sizes)


def why_no_sums(gathering: Gathering, process: Process, order: dict[str, Any]) -> str:
    """Send the order to the other process. Return why it failed, if it did."""
    assert process.stdin is not None
    assert process.stderr is not None
    with suppress(BrokenPipeError):  # it has ended already, and its standard error says why
        os.write(process.stdin.fileno(), json.dumps(order).encode() + b"\n")
    last = time.monotonic() + SUMMING_SECONDS
    while (code := process.poll()) is None and not gathering.problem:
        if time.monotonic() > last:
            return f"the ranks did not connect, or did not sum, for {SUMMING_SECONDS:.0f} s"
        time.sleep(_POLL_SECONDS)
    if code == 0:
        return ""
    if code is None or gathering.problem:
        return gathering.problem
    return (process.stderr.read().strip().splitlines() or [f"MLX has ended with {code}"])[-1]


@contextmanager
def _started() -> Iterator[Process]:
    """Start the slow process that needs MLX early, and end it at the end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(_SUMS, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def sizes_of(path: Path) -> Sizes | None:
    """Return the sizes in a model's config.json; None if they are not there."""
    try:
        config = json.loads((path / "config.json").read_bytes())
        config = config.get("text_config") or config
        layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    except (OSError, ValueError, AttributeError):
        return None
    whole = isinstance(layers, int) and isinstance(hidden, int) and layers > 0 and hidden > 0
    return Sizes(layers, hidden) if whole else None
