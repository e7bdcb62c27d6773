"""`omlx-server serve --hosts FILE --dry-run`: shows how a cluster would be started, without MLX."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omlx_server.cli.shell.options import load_settings
from omlx_server.errors import UsageError
from omlx_server.models import catalogue, locate
from omlx_server.settings import Loaded
from omlx_server.wiring.cluster.options import GatheringOptions, gathering_options, hosts_of
from omlx_server.wiring.cluster.starting import command_lines_of, line_by_hand

# They stand in the command lines for values that only a running server has.
_PORT, _PID = "PORT", "PID"


def show_start(
    model: str, flags: Mapping[str, str | None], config: Path | None, sets: Sequence[str]
) -> int:
    loaded = load_settings(config, sets, flags)
    settings = loaded.settings
    models = settings.models
    name = models.resolve_alias(model or models.default or catalogue.STARTER.name)
    hosts = hosts_of(settings)
    if not hosts:
        raise UsageError(
            "--dry-run shows how several machines would be started, and there is no hosts file",
            hint="name it: --hosts FILE; docs/cluster.md says what it holds",
        )
    if name not in catalogue.NAMES:
        locate.find_or_expect(name, models)
    print("\n".join(_plan_lines(name, loaded, gathering_options(loaded, hosts))))
    return 0


def _plan_lines(model: str, loaded: Loaded, options: GatheringOptions) -> Iterator[str]:
    cluster, hosts = loaded.settings.cluster, options.hosts
    leader = f"{options.listens_at}:{cluster.port or _PORT}"
    backend = cluster.backend
    yield f"{len(hosts)} ranks would compute {model}, connected by MLX's {backend} back end."
    yield f"rank 0: this process. It would await the other ranks at {leader}."
    commands = command_lines_of(options, leader, _PID)
    for rank, (host, command) in enumerate(zip(hosts[1:], commands, strict=True), 1):
        where = "this machine" if host.is_here else host.ssh
        if options.secret:
            yield f"rank {rank}: to be started on {where} by hand, where FILE holds the secret:"
            yield f"  {line_by_hand(options, rank, leader)}"
        else:
            how = "" if host.is_here else " by ssh"
            yield f"rank {rank}: it would be started on {where}{how}:"
            yield f"  {command}"
    yield from _notes(options)


def _notes(options: GatheringOptions) -> Iterator[str]:
    if options.secret:
        yield "Each rank reads the secret, cluster.secret, from its standard input."
        if not options.port:
            yield f"{_PORT} changes at each start: set cluster.port."
    else:
        yield "Each rank gets a secret, made at each start, on its standard input."
        if not options.port:
            yield f"{_PORT} would be any free one, since cluster.port is 0."
        yield f"{_PID} would be the process id of rank 0."
    yield "Nothing was started. `omlx-server doctor --hosts FILE` tries the machines."
