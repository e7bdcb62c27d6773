"""Servers that draft, over HTTP: ours beside mlx_lm.server with a draft model, and beside that of
llama.cpp with its n-grams."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.benchmarks.http_system import RAM_ONLY, HttpSystem, our_system, start_ours
from scripts.benchmarks.metrics import SYSTEMS, Better, Metric, Requirement, Sample, Spec, find
from scripts.benchmarks.peer_servers import Launch
from scripts.benchmarks.peers import Peer
from scripts.benchmarks.speculation_plan import WITH, WITHOUT
from scripts.benchmarks.timeline import total_rate
from scripts.benchmarks.workload import Prompt, Workload

NAMES = ("mlx_lm", "llama_cpp")
"""The peers that draft: one by a draft model, one from the text."""

# What looks the newest tokens up in the text so far, as ours does.
_NGRAM = ("--spec-type", "ngram-simple")
_WARM_UP_OUT = 2
_COMPARED = (
    ("draft_1", "mlx_lm"),
    ("draft_4", "mlx_lm"),
    ("edit_1", "llama_cpp"),
    ("edit_4", "llama_cpp"),
)

Sides = Mapping[str, HttpSystem]
"""One server with drafts, and one without."""


@dataclass(frozen=True, slots=True)
class HttpTask:
    """So many streams that continue one text, with `out` tokens each."""

    name: str
    title: str
    prompt: Prompt
    streams: int
    out: int


class ServerBench:
    """Servers of one model, each with drafts and without."""

    def __init__(self, servers: Mapping[str, Sides], tasks: Sequence[HttpTask]) -> None:
        self._servers = servers
        self._tasks = tasks

    def round(self) -> list[Sample]:
        """Each task once on every server."""
        return [sample for task in self._tasks for sample in self._task(task)]

    def _task(self, task: HttpTask) -> Iterator[Sample]:
        """Of an answer that ended early there is no rate."""
        prompts = (task.prompt,) * task.streams
        for name, sides in self._servers.items():
            title = f"{task.title}, {SYSTEMS[name]}"
            spec = Spec(f"{task.name}_{name}", title, "tok/s", Better.HIGHER)
            for side, server in sides.items():
                server.run(Workload(prompts, _WARM_UP_OUT))  # puts the prompt into its cache
                run = server.run(Workload(prompts, task.out))
                if not run.cut_short:
                    yield Sample(spec, side, total_rate(run))


def tasks_for(peer: Peer, edit: Prompt, prose: Prompt, out: int) -> list[HttpTask]:
    """What ours and one of the peers are asked."""
    if peer.name == "mlx_lm":
        title = "HTTP, prose, a draft model a third as large"
        return [
            HttpTask("http_draft_1", title, prose, 1, out),
            HttpTask("http_draft_4", f"{title}, 4 streams", prose, 4, out),
        ]
    return [
        HttpTask("http_edit_1", "HTTP, an edit", edit, 1, out),
        HttpTask("http_edit_4", "HTTP, 4 edits", edit, 4, out),
    ]


def start(peer: Peer, launch: Launch, drafter: Path, stack: ExitStack) -> dict[str, Sides]:
    """Our server and one of the peers, which end with the `stack`. `drafter` is the directory of a
    draft model for a peer that takes one. Raises ChildFailed."""
    takes_model = peer.name == "mlx_lm"
    options = ("--draft-model", str(drafter)) if takes_model else _NGRAM
    settings = [f"speculation.draft_model={drafter}"] if takes_model else []
    begun = [
        start_ours(launch.model, launch.folder, RAM_ONLY, *settings),
        peer.start(launch, *options),
        peer.start(launch),
    ]
    for system in begun:
        stack.callback(system.child.end)
    ours, drafting, plain = begun
    without = our_system(ours.child, speculation="off")
    for system in (*begun, without):
        system.wait_until_ready()
    return {
        "ours": {WITH: ours, WITHOUT: without},
        peer.name: {WITH: drafting, WITHOUT: plain},
    }


def requirements(metrics: Sequence[Metric]) -> list[Requirement]:
    """With a draft model ours has to be as fast as mlx_lm.server, which has the same weights. An
    edit has to gain ours what it gains llama.cpp, whose weights have 4 bits."""
    found = []
    for name, peer in _COMPARED:
        ours, theirs = find(metrics, f"http_{name}_ours"), find(metrics, f"http_{name}_{peer}")
        if ours and theirs:
            gain = peer == "llama_cpp"
            title = f"{ours.spec.title}: {'gain' if gain else 'speed'} / {SYSTEMS[peer]}"
            ratio = _ratio(ours, theirs, gain=gain)
            found.append(Requirement(title, ratio, 1.0, Better.HIGHER))
    return found


def _ratio(ours: Metric, theirs: Metric, *, gain: bool) -> float | None:
    """The median of the rounds: of the speed with drafts, or of what drafts gain."""
    ratios = []
    for our, their in zip(ours.rounds, theirs.rounds, strict=True):
        if {WITH, WITHOUT} <= our.keys() & their.keys():
            ratio = our[WITH] / their[WITH]
            ratios.append(ratio / our[WITHOUT] * their[WITHOUT] if gain else ratio)
    return median(ratios) if ratios else None
