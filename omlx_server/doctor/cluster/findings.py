"""The findings on a cluster in words. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

from omlx_server.core.cluster.hosts import Host
from omlx_server.core.cluster.state import RankState, RankStatus
from omlx_server.doctor.finding import Finding, fail, ok, warn
from omlx_server.wiring.cluster.options import NO_PORT

SMALL_BYTES, LARGE_BYTES = 8 << 10, 8 << 20
"""The activations of one token, at 4,096 numbers of 2 bytes, and those of a chunk of a prompt."""
_SLOW_SECONDS = 1e-3
_SLOW_BITS = 1e9  # per second
_SUMS_PER_LAYER = 2
_FASTER = (
    "a cable between the machines (Thunderbolt, Ethernet), and its addresses as the first of `ips`"
)
# Words in a rank's problem -> advice. The first match counts.
_FIXES: Mapping[str, str] = MappingProxyType(
    {
        "can't join the cluster": "a firewall? {host} must reach rank 0 at {leader}",
        "directory: 'ssh'": "install an ssh client here",
        "permission denied (": "a key for ssh: ssh-copy-id {host}",
        "host key verification": "see its key once, and accept it: ssh {host}",
        "could not resolve": 'a name that ssh knows, as "ssh" of that host in the hosts file',
        "not found": "its path there: omlx-server config set cluster.program PATH",
        "no such file": "its path there: omlx-server config set cluster.program PATH",
        " and not ": "the same versions on all machines: `omlx-server version` says which",
        "is another model": "the same files on all machines: copy the directory",
        "there is no ": "get the model there, too: omlx-server pull, or copy the directory",
        "is no address": 'its own addresses, as "ips" of that host in the hosts file',
        "connect to host": "switch on its ssh server (macOS: Sharing, Remote Login): ssh {host}",
    }
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The `layers` of a model, and the numbers of a token between them (`hidden`)."""

    layers: int
    hidden: int


def hosts(file: Path, members: Sequence[Host]) -> Finding:
    places = (f"{host.ssh or 'localhost'} ({', '.join(host.ips)})" for host in members)
    return ok("hosts", f"{file} names {len(members)}: {'; '.join(places)}")


def address(ip: str, port: int, problem: str) -> Finding:
    where = f"{ip} port {port}" if port else f"{ip}, any free port"
    if not problem:
        return ok("address", f"rank 0 can listen at {where}")
    if problem == NO_PORT:
        fix = "a port that is free: omlx-server config set cluster.port 7000"
    elif "in use" in problem:
        fix = "stop the server that has it, or take another one as cluster.port"
    else:
        fix = 'the first host is this machine: write its own addresses as "ips" of it'
    return fail("address", problem, fix)


def rank(
    state: RankState, host: Host, versions: str, leader: str, by_hand: str, seconds: float
) -> Finding:
    """Return the finding on a rank, which was awaited for `seconds`. `leader` is HOST:PORT of rank
    0; `by_hand` is the command for a rank that does not start by itself."""
    name = host.ssh or "localhost"
    what = f"rank {state.rank}"
    if state.status is RankStatus.READY:
        return ok(what, f"{name} answers, has the model, and {versions} as here")
    if not state.problem:
        said = "did not come" if state.status is RankStatus.AWAY else "did not find the model"
        fix = f"start it there: {by_hand}" if by_hand else f"try it: ssh {name} true"
        return fail(what, f"{name} {said} for {seconds:.0f} s", fix)
    fixes = (fix for words, fix in _FIXES.items() if words in state.problem.lower())
    fix = next(fixes, "what it logs on its machine may say more: logging.file there")
    return fail(what, f"{name}: {state.problem}", fix.format(host=name, leader=leader))


def connected(size: int, backend: str, problem: str) -> Finding:
    if not problem:
        return ok("group", f"{size} ranks are connected ({backend})")
    fix = "the machines must reach each other at their `ips`, at any port: look at firewalls"
    return fail("group", problem, fix)


def not_split(name: str, problem: str) -> Finding:
    fix = "as many hosts as can share it, or another model: docs/cluster.md, Which models"
    return fail("group", f"{name}: {problem}", fix)


def latency(times: Sequence[float], name: str, sizes: Sizes | None) -> Finding:
    """Return the finding on `times`: seconds of each sum of SMALL_BYTES."""
    seconds = median(times)
    says = f"a sum of 8 kB takes {1e3 * seconds:.2f} ms (median of {len(times)})"
    if sizes is not None:
        count = _SUMS_PER_LAYER * sizes.layers
        most = 1 / (count * seconds)
        says += f"; a token of {name} waits for {count}: at most {most:.0f} tokens/s in one answer"
    if seconds <= _SLOW_SECONDS:
        return ok("latency", says)
    return warn("latency", says, _FASTER)


def bandwidth(times: Sequence[float], size: int, name: str, sizes: Sizes | None) -> Finding:
    """Return the finding on `times`: seconds of each sum of LARGE_BYTES. A rank of a ring sends 2
    (size - 1) / size of the sum to its neighbour."""
    share = 2 * (size - 1) / size
    rate = share * LARGE_BYTES / median(times)  # bytes per second
    says = f"a sum of 8 MB takes {1e3 * median(times):.0f} ms: {8e-9 * rate:.2g} Gbit/s"
    if sizes is not None:
        each = share * _SUMS_PER_LAYER * sizes.layers * sizes.hidden * 2  # bytes of a token
        says += f"; prompts of {name} at most {rate / each:.0f} tokens/s"
    if 8 * rate >= _SLOW_BITS:
        return ok("network", says)
    return warn("network", says, _FASTER)
