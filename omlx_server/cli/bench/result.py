"""What a run found: each figure with all its values, its median and its spread."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any

from omlx_server.errors import UsageError

SCHEMA = 1


class Group(Enum):
    """Kinds of figures, in the order in which they are shown."""

    COLD = "ttft_cold"
    WARM = "ttft_warm"
    DECODE = "decode"
    TURN = "ttft_turn"

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def unit(self) -> str:
        return "tok/s" if self is Group.DECODE else "s"

    @property
    def more_is_better(self) -> bool:
        return self is Group.DECODE


_TITLES = {
    Group.COLD: "first token, new prompt",
    Group.WARM: "first token, same prompt again",
    Group.DECODE: "decoding, all streams",
    Group.TURN: "first token, turns of a talk",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """`at`: tokens of the prompt that were wanted, streams, or the number of the turn. The medians
    of what the server counted: `prompt_tokens`, and `cached` of them, where it tells."""

    group: Group
    at: int
    values: tuple[float, ...]
    prompt_tokens: int = 0
    cached: int | None = None

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
            "cached_tokens": self.cached,
        }


@dataclass(frozen=True, slots=True)
class Result:
    """`notes` say what was left out, and why."""

    url: str
    model: str
    server: str
    created: str
    seconds: float
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()

    def find(self, name: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.name == name), None)

    def of(self, group: Group) -> list[Figure]:
        return [figure for figure in self.figures if figure.group is group]

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "url": self.url,
            "model": self.model,
            "server": self.server,
            "created": self.created,
            "seconds": round(self.seconds, 1),
            "figures": [figure.as_json() for figure in self.figures],
            "notes": list(self.notes),
        }


def read(path: Path) -> Result:
    """An earlier --json. Raises UsageError for anything else."""
    try:
        return _result(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        hint = "make one with `omlx-server bench --json > FILE`"
        raise UsageError(f"{path} is no result of `omlx-server bench --json`", hint=hint) from None


def _result(said: Mapping[str, Any]) -> Result:
    if said["schema"] != SCHEMA:
        raise ValueError("another schema")
    return Result(
        url=str(said["url"]),
        model=str(said["model"]),
        server=str(said["server"]),
        created=str(said["created"]),
        seconds=float(said["seconds"]),
        figures=tuple(_figure(row) for row in said["figures"]),
        notes=tuple(map(str, said["notes"])),
    )


def _figure(row: Mapping[str, Any]) -> Figure:
    values: Sequence[Any] = row["values"]
    if not values:
        raise ValueError("a figure without values")
    counted = (int(row["prompt_tokens"]), row["cached_tokens"])
    return Figure(Group(row["group"]), int(row["at"]), tuple(map(float, values)), *counted)
