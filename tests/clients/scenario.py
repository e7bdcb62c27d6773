"""The scenarios of one client, run one after the other in the client's own environment.

Standard library only: nothing of the project is installed there. Each outcome is a line of JSON on
standard output; what the client prints itself goes to standard error.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

MARK = "OMLX_CLIENTS_"
CONTEXT = 8192  # tokens that the starter model reads

_CLIENTS = frozenset(Path(__file__).parent.glob("*_client.py"))

Scenario = Callable[["Server"], None]


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is and what it serves. `calling_model` calls get_weather for Paris, and says
    `calling_model_answer` when it rains there. `directory` is the client's to write to; `python`
    has the project and MLX; `model_path` holds the model's files."""

    url: str
    model: str
    embedding_model: str
    calling_model: str
    calling_model_answer: str
    model_path: Path
    directory: Path
    python: str

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    def variables(self) -> dict[str, str]:
        """For the environment of a client."""
        return {MARK + name.upper(): str(value) for name, value in asdict(self).items()}

    @classmethod
    def of_environment(cls) -> "Server":
        def given(name: str) -> str:
            return os.environ[MARK + name.upper()]

        return cls(
            url=given("url"),
            model=given("model"),
            embedding_model=given("embedding_model"),
            calling_model=given("calling_model"),
            calling_model_answer=given("calling_model_answer"),
            model_path=Path(given("model_path")),
            directory=Path(given("directory")),
            python=given("python"),
        )


class Scenarios:
    """Those of one client, in the order in which they stand in its file."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._all: list[Scenario] = []

    def __call__(self, scenario: Scenario) -> Scenario:
        self._all.append(scenario)
        return scenario

    def main(self) -> None:
        """Run them all, whatever becomes of each."""
        results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        server = Server.of_environment()
        for scenario in self._all:
            began = time.monotonic()
            with _Attempt() as attempt:
                scenario(server)
            outcome = {
                "version": version(self._package),
                "scenario": scenario.__name__,
                "seconds": time.monotonic() - began,
                "error": attempt.error,
            }
            results.write(json.dumps(outcome) + "\n")
            results.flush()


class _Attempt:
    """Keeps what a scenario raises; an interrupt goes on."""

    def __init__(self) -> None:
        self.error = ""

    def __enter__(self) -> "_Attempt":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        traceback.print_exception(error)
        place = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in place if Path(frame.filename) in _CLIENTS]
        line = f"line {own[-1].lineno}: " if own else ""
        said = " ".join(str(error).split())
        self.error = f"{line}{type(error).__name__}: {said}"
        return True


def too_long() -> str:
    """A text that no context of the starter model holds."""
    return "seven " * (CONTEXT + 100)
