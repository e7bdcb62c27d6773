"""A finding: the result of one check of the doctor."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. Raises ValueError unless the `fix` is empty exactly when the level
    is OK."""

    level: Level
    what: str
    says: str
    fix: str = ""

    def __post_init__(self) -> None:
        if bool(self.fix) is (self.level is Level.OK):
            raise ValueError("a problem needs a fix, and only a problem")


def ok(what: str, says: str) -> Finding:
    return Finding(Level.OK, what, says)


def warn(what: str, says: str, fix: str) -> Finding:
    return Finding(Level.WARN, what, says, fix)


def fail(what: str, says: str, fix: str) -> Finding:
    return Finding(Level.FAIL, what, says, fix)


def in_words(size: float) -> str:
    """Return a size in bytes as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
