"""Planned memory over measured: forwards are planned, then run and measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.planning.probe import Bench
from omlx_server.core.memory.estimate import FlatPlanner, Planner
from omlx_server.core.memory.shape import Decode, Prefill
from omlx_server.doctor.finding import Finding, fail, in_words, ok, warn
from omlx_server.doctor.selftest.check import REPORT, Beat, Check, Plan
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.wiring.model_factory import limits

_WHAT = "memory"
# The bounds of planned over measured that `scripts/bench memory` has, too.
UNDER, OVER = 0.95, 1.5
# What is planned beyond a measurement by less than this does not matter.
_NOTHING = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One forward: its bytes above the weights and the caches, as planned and as measured."""

    forward: Prefill | Decode
    planned: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    @property
    def is_over(self) -> bool:
        return self.ratio > OVER and self.planned - self.measured > _NOTHING

    @property
    def words(self) -> str:
        forward, rows = self.forward, self.forward.rows
        of = f"{rows} row{'s' if rows > 1 else ''} behind {forward.context} tokens"
        doing = f"a chunk of {forward.tokens}" if isinstance(forward, Prefill) else "a decode"
        return f"{doing} of {of}"


def planned(subject: Subject, plan: Plan, beat: Beat) -> Check:
    """Check the forwards of the plan."""
    watch = subject.instance.watch
    assert watch is not None, "the factory watches every model"
    forwards = _forwards(subject, plan)
    try:
        lines = _measured(subject, watch.planner, forwards, beat)
    except CannotFill:
        return Check(ok(_WHAT, "can't be measured: this model's caches can't be made for a probe"))
    if any(line.measured <= 0 for line in lines):
        return Check(ok(_WHAT, "can't be measured: MLX tells no peak on this device"))
    figures = {
        "planned_by": _planned_by(watch.planner),
        "forwards": [
            {"of": line.words, "planned": line.planned, "measured": line.measured} for line in lines
        ],
    }
    return Check(_judged(lines, watch.planner), figures)


def _forwards(subject: Subject, plan: Plan) -> list[Prefill | Decode]:
    chunk = limits(subject.settings, subject.located.names).prefill_chunk_tokens
    rows = sorted({1, min(plan.rows, subject.most_rows)})
    contexts = sorted({subject.tokens(context) for context in plan.contexts})
    prefills = [Prefill(1, chunk, context) for context in contexts]
    return [*prefills, *(Decode(n, max(chunk, c)) for n in rows for c in contexts)]


def _measured(
    subject: Subject,
    planner: Planner,
    forwards: Sequence[Prefill | Decode],
    beat: Beat,
) -> list[Line]:
    bench = Bench(subject.loaded)
    lines = []
    for number, forward in enumerate(forwards):
        beat(number, len(forwards))
        if isinstance(forward, Prefill):
            expected, peak = planner.prefill(forward), bench.prefill(forward)
        else:
            expected, peak = planner.decode(forward), bench.decode(forward)
        lines.append(Line(forward, expected, peak.transient))
    return lines


def _planned_by(planner: Planner) -> str:
    if isinstance(planner, FlatPlanner):
        return "memory.activation_reserve"
    return "probes" if planner.coefficients.calibrated else "an upper bound"


def _judged(lines: Sequence[Line], planner: Planner) -> Finding:
    low, high = (pick(lines, key=lambda line: line.ratio) for pick in (min, max))
    if low.ratio < UNDER:
        return fail(
            _WHAT,
            f"{low.words} took {in_words(low.measured)} where {in_words(low.planned)} were planned "
            f"({low.ratio:.2f} of it): memory may run out under load",
            f"a lower memory.limit leaves room; {REPORT}",
        )
    span = f"{low.ratio:.2f} to {high.ratio:.2f} of what {len(lines)} forwards took"
    if _planned_by(planner) != "probes":
        return ok(_WHAT, f"planned {span}, by {_planned_by(planner)}: it is not measured at load")
    over = next((line for line in lines if line.is_over), None)
    if over is not None:
        return warn(
            _WHAT,
            f"{over.words} took {in_words(over.measured)} where {in_words(over.planned)} were "
            f"planned ({over.ratio:.2f} times): fewer conversations fit than could",
            REPORT,
        )
    return ok(_WHAT, f"planned {span}")
