"""The bare batch loop as a system: no HTTP, no text, no server; the most that mlx-lm gives."""

import json
import sys
from pathlib import Path
from typing import Any

from omlx_server.cli.bench.target import Stream
from scripts.benchmarks import environment
from scripts.benchmarks.process import Child
from scripts.benchmarks.timeline import Run
from scripts.benchmarks.workload import Prompt, Workload, as_json


class BareSystem:
    """Our side of the pipe to `bare_worker`."""

    name = "bare"

    def __init__(self, model: Path, folder: Path) -> None:
        command = [sys.executable, "-m", "scripts.benchmarks.bare_worker", str(model)]
        self.child = Child(
            command, environment.with_fast_blas(), folder / "bare_loop.log", piped=True
        )
        self.peak_memory = 0

    def wait_until_ready(self) -> None:
        self._read()

    def run(self, workload: Workload) -> Run:
        before = self.child.cpu_seconds
        with self.child.watched():
            answer = self._ask(as_json(workload))
        cpu = self.child.cpu_seconds - before
        self.peak_memory = max(self.peak_memory, answer["peak_memory"])
        late = answer["late"]
        return Run(
            tuple(_stream(part) for part in answer["streams"]), _stream(late) if late else None, cpu
        )

    def chunk_seconds(self, prompt: Prompt, size: int) -> list[float]:
        """Seconds of each prefill chunk of our ModelRunner over this prompt."""
        seconds: list[float] = self._ask({"chunk": prompt.tokens, "size": size})["seconds"]
        return seconds

    def _ask(self, job: dict[str, Any]) -> dict[str, Any]:
        stdin, _ = self.child.pipes
        try:
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # the read below tells why
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self.child.pipes[1].readline()
        if not line:
            raise self.child.failure("ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _stream(part: dict[str, Any]) -> Stream:
    return Stream(part["sent"], tuple(part["times"]), len(part["times"]))
