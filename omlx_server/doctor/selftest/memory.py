"""Planned memory over measured: forwards are planned, then run and measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.planning.probe import ForwardProbe
from omlx_server.core.memory.estimate import FlatPlanner, Planner
from omlx_server.core.memory.kv import GROWTH, Decode, PrefillShape
from omlx_server.doctor.finding import Finding, fail, in_words, ok, warn
from omlx_server.doctor.selftest.check import REPORT, Beat, Check, SelftestPlan
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.wiring.model_factory import limits

_WHAT = "memory"
# The bounds of planned over measured that `scripts/bench memory` has, too.
UNDER, OVER = 0.95, 1.5
# Smaller differences in bytes do not matter.
_NOTHING = 1 << 18


@dataclass(frozen=True, slots=True)
class Line:
    """One forward: its bytes above weights and caches."""

    forward: PrefillShape | Decode
    planned: int
    measured: int

    @property
    def ratio(self) -> float:
        return self.planned / self.measured

    @property
    def grows(self) -> bool:
        return isinstance(self.forward, Decode) and self.forward.grows

    @property
    def is_under(self) -> bool:
        """Whether too little was planned. The server plans every decode as if its buffers grew, so
        other decodes don't count."""
        is_asked = isinstance(self.forward, PrefillShape) or self.grows
        return is_asked and self.ratio < UNDER and self.measured - self.planned > _NOTHING

    @property
    def is_over(self) -> bool:
        """Whether too much was planned. Room for growing buffers also serves new rows."""
        return not self.grows and self.ratio > OVER and self.planned - self.measured > _NOTHING

    @property
    def words(self) -> str:
        forward, rows = self.forward, self.forward.rows
        of = f"{rows} row{'s' if rows > 1 else ''} behind {forward.context} tokens"
        doing = f"a chunk of {forward.tokens}"
        if isinstance(forward, Decode):
            doing = "a decode whose buffers grow" if forward.grows else "a decode"
        return f"{doing} of {of}"


def check_memory(subject: Subject, plan: SelftestPlan, beat: Beat) -> Check:
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


def _forwards(subject: Subject, plan: SelftestPlan) -> list[PrefillShape | Decode]:
    chunk = limits(subject.settings, subject.located.names).prefill_chunk_tokens
    rows = min(plan.rows, subject.most_rows)
    contexts = sorted({subject.tokens(context) for context in plan.contexts})
    prefills = [PrefillShape(1, chunk, context) for context in contexts]
    # At a multiple of GROWTH a cache's buffers are full: the next token makes them grow.
    full_buffers = sorted({max(GROWTH, context // GROWTH * GROWTH) for context in contexts})
    steady = [Decode(rows, context - GROWTH // 2) for context in full_buffers]
    return [*prefills, *steady, *(Decode(rows, context, grows=True) for context in full_buffers)]


def _measured(
    subject: Subject,
    planner: Planner,
    forwards: Sequence[PrefillShape | Decode],
    beat: Beat,
) -> list[Line]:
    bench = ForwardProbe(subject.loaded)
    lines = []
    for number, forward in enumerate(forwards):
        beat(number, len(forwards))
        if isinstance(forward, PrefillShape):
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
    under = next((line for line in lines if line.is_under), None)
    if under is not None:
        return fail(
            _WHAT,
            f"{under.words} took {in_words(under.measured)} where {in_words(under.planned)} were "
            f"planned ({under.ratio:.2f} of it): memory may run out under load",
            f"a lower memory.limit leaves room; {REPORT}",
        )
    ratios = [line.ratio for line in lines if not line.grows]
    span = f"{min(ratios):.2f} to {max(ratios):.2f} of what {len(ratios)} forwards took"
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
