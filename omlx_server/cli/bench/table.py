"""A result as text, with each figure's change since an earlier run."""

from collections.abc import Iterator

from omlx_server.cli.bench.result import Figure, FigureGroup, Result, better_by

_AT = {
    FigureGroup.COLD: "{} tokens",
    FigureGroup.WARM: "{} tokens",
    FigureGroup.DECODE: "{} streams",
    FigureGroup.TURN: "turn {}",
}


def lines(result: Result, before: Result | None) -> Iterator[str]:
    yield f"{result.model} at {result.url} ({result.server}), {result.seconds:.0f} s"
    if before is not None:
        yield f"against {before.model} at {before.url}, {before.created}"
    for group in FigureGroup:
        if figures := result.of(group):
            yield ""
            yield _head(group, before)
            yield from (_line(figure, before) for figure in figures)
    if result.notes:
        yield ""
        yield from (f"note: {note}" for note in result.notes)


def _head(group: FigureGroup, before: Result | None) -> str:
    title = f"{group.title} ({group.unit})"
    ratio = "   better by" if before else ""
    counted = "drafted" if group is FigureGroup.DECODE else "cached/prompt"
    return f"{title:<36}  median   smallest    largest{counted:>16}{ratio}"


def _line(figure: Figure, before: Result | None) -> str:
    at = _AT[figure.group].format(figure.at).replace("1 streams", "1 stream")
    values = figure.values
    spread = (_number(min(values)), _number(max(values))) if len(values) > 1 else ("-", "-")
    shown = "".join(f"{number:>11}" for number in (_number(figure.median), *spread))
    return f"  {at:<30}{shown}{_counted(figure):>16}{_ratio(figure, before)}"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _counted(figure: Figure) -> str:
    if figure.group is FigureGroup.DECODE:
        return "?" if figure.drafted is None else f"{100 * figure.drafted:.0f} %"
    cached = "?" if figure.cached_tokens is None else figure.cached_tokens
    return f"{cached}/{figure.prompt_tokens or '?'}"


def _ratio(figure: Figure, before: Result | None) -> str:
    old = before.find(figure.name) if before else None
    if old is None:
        return f"{'-':>12}" if before else ""
    gain = better_by(figure, old)
    return f"{gain.ratio:>11.2f}x" + ("" if gain.is_clear else "  (within the spread)")
