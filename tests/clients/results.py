"""What became of the scenarios, and how that is shown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Result:
    """`error` is empty when it went well. A skipped client neither passed nor failed."""

    client: str
    version: str
    scenario: str
    seconds: float
    error: str = ""
    skipped: bool = False

    @classmethod
    def of_line(cls, client: str, line: str) -> "Result":
        """As a client writes it. Raises ValueError and KeyError for anything else."""
        told = json.loads(line)
        return cls(
            client,
            str(told["version"]),
            str(told["scenario"]),
            float(told["seconds"]),
            str(told["error"]),
        )

    @property
    def word(self) -> str:
        if self.skipped:
            return "skipped"
        return "FAILED" if self.error else "ok"

    def __str__(self) -> str:
        said = f": {self.error[:_LONGEST_ERROR]}" if self.error else ""
        return f"{self.client} {self.scenario} {self.word} {self.seconds:.1f} s{said}"


def failed(results: Sequence[Result]) -> bool:
    """Nothing at all is a failure, too."""
    return not results or any(result.word == "FAILED" for result in results)


def table(results: Sequence[Result]) -> str:
    head = ("client", "version", "scenario", "result", "seconds")
    rows = [head, *((r.client, r.version, r.scenario, r.word, f"{r.seconds:.1f}") for r in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
