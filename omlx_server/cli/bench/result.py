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
    """`values` are seconds, or tokens per second for DECODE. `at` is the number of prompt
    tokens, streams, or the turn. `prompt_tokens` and `cached_tokens` are medians, `drafted` a
    share; None if unknown."""

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


def read(path: Path) -> Result:
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
    """The change of a figure. `ratio` is above 1 if the new median is better, 0 if unknown.
    `is_clear`: the values of the runs do not overlap."""

    ratio: float
    is_clear: bool


def better_by(now: Figure, before: Figure) -> Gain:
    new, old = now.median, before.median
    better, worse = (new, old) if now.group.more_is_better else (old, new)
    is_clear = min(now.values) > max(before.values) or max(now.values) < min(before.values)
    return Gain(better / worse if worse else 0.0, is_clear)


def ratios(result: Result, before: Result) -> dict[str, Any]:
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
