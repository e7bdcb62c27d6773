"""The result of a run, how it compares with an earlier one, and both as text."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omlx_server.errors import UsageError

SCHEMA = 1


class FigureGroup(Enum):
    """A kind of figure."""

    COLD = "ttft_cold"
    WARM = "ttft_warm"
    DECODE = "decode"
    TURN = "ttft_turn"

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def unit(self) -> str:
        return "tok/s" if self is FigureGroup.DECODE else "s"

    @property
    def more_is_better(self) -> bool:
        return self is FigureGroup.DECODE


_TITLES = {
    FigureGroup.COLD: "first token, new prompt",
    FigureGroup.WARM: "first token, same prompt again",
    FigureGroup.DECODE: "decoding, all streams",
    FigureGroup.TURN: "first token, turns of a talk",
}
_AT = {
    FigureGroup.COLD: "{} tokens",
    FigureGroup.WARM: "{} tokens",
    FigureGroup.DECODE: "{} streams",
    FigureGroup.TURN: "turn {}",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `values` are seconds, or tokens per second for DECODE. `at` is the number of
    prompt tokens, streams, or the turn. `prompt_tokens` and `cached_tokens` are medians,
    `drafted` is a share (0 to 1); None if unknown."""

    group: FigureGroup
    at: int
    values: Annotated[tuple[float, ...], Meta(min_length=1)]
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    drafted: float | None = None

    @property
    def name(self) -> str:
        return f"{self.group.value}_{self.at}"

    @property
    def median(self) -> float:
        return median(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "group": self.group.value,
            "at": self.at,
            "unit": self.group.unit,
            "median": round(self.median, 6),
            "smallest": round(min(self.values), 6),
            "largest": round(max(self.values), 6),
            "values": [round(value, 6) for value in self.values],
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "drafted": None if self.drafted is None else round(self.drafted, 4),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one run, which took `seconds`. `notes` say what was left out."""

    url: str
    model: str
    server: str
    created: str
    seconds: float
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def find(self, name: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.name == name), None)

    def of(self, group: FigureGroup) -> list[Figure]:
        return [figure for figure in self.figures if figure.group is group]

    def as_json(self) -> dict[str, Any]:
        figures = [figure.as_json() for figure in self.figures]
        rounded = {"seconds": round(self.seconds, 1), "figures": figures}
        return {"schema": SCHEMA, **asdict(self), **rounded}


def read_result(path: Path) -> Result:
    """Read a result of --json. Raises UsageError if the file is none."""
    try:
        document = msgspec.json.decode(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise ValueError("another schema")
        return msgspec.convert(document, Result)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        hint = "make one with `omlx-server bench --json > FILE`"
        raise UsageError(f"{path} is no result of `omlx-server bench --json`", hint=hint) from None


@dataclass(frozen=True, slots=True)
class Gain:
    """A figure's change: `ratio` > 1 is better, 0 unknown; if it `is_clear`, runs don't overlap."""

    ratio: float
    is_clear: bool


def better_by(now: Figure, before: Figure) -> Gain:
    dividend, divisor = now.median, before.median
    if not now.group.more_is_better:
        dividend, divisor = divisor, dividend
    is_clear = min(now.values) > max(before.values) or max(now.values) < min(before.values)
    return Gain(dividend / divisor if divisor else 0.0, is_clear)


def comparison_json(result: Result, before: Result) -> dict[str, Any]:
    pairs = ((figure, before.find(figure.name)) for figure in result.figures)
    gains = {new.name: better_by(new, old) for new, old in pairs if old is not None}
    return {
        "url": before.url,
        "model": before.model,
        "server": before.server,
        "created": before.created,
        "better_by": {
            name: {"ratio": round(gain.ratio, 4), "clear": gain.is_clear}
            for name, gain in gains.items()
        },
    }


def result_lines(result: Result, before: Result | None) -> Iterator[str]:
    yield f"{result.model} at {result.url} ({result.server}), {result.seconds:.0f} s"
    if before is not None:
        yield f"against {before.model} at {before.url}, {before.created}"
    for group in FigureGroup:
        if figures := result.of(group):
            yield ""
            yield _group_heading(group, before)
            yield from (_figure_line(figure, before) for figure in figures)
    if result.notes:
        yield ""
        yield from (f"note: {note}" for note in result.notes)


def _group_heading(group: FigureGroup, before: Result | None) -> str:
    title = f"{group.title} ({group.unit})"
    ratio = "   better by" if before else ""
    share = "drafted" if group is FigureGroup.DECODE else "cached/prompt"
    return f"{title:<36}  median   smallest    largest{share:>16}{ratio}"


def _figure_line(figure: Figure, before: Result | None) -> str:
    at = _AT[figure.group].format(figure.at).replace("1 streams", "1 stream")
    smallest = largest = "-"
    if len(figure.values) > 1:
        smallest, largest = _number(min(figure.values)), _number(max(figure.values))
    columns = f"{_number(figure.median):>11}{smallest:>11}{largest:>11}"
    return f"  {at:<30}{columns}{_share_in_words(figure):>16}{_ratio_column(figure, before)}"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _share_in_words(figure: Figure) -> str:
    if figure.group is FigureGroup.DECODE:
        return "?" if figure.drafted is None else f"{100 * figure.drafted:.0f} %"
    cached = "?" if figure.cached_tokens is None else figure.cached_tokens
    return f"{cached}/{figure.prompt_tokens or '?'}"


def _ratio_column(figure: Figure, before: Result | None) -> str:
    old = before.find(figure.name) if before else None
    if old is None:
        return f"{'-':>12}" if before else ""
    gain = better_by(figure, old)
    return f"{gain.ratio:>11.2f}x" + ("" if gain.is_clear else "  (within the spread)")
