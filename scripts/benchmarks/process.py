"""A child process: where its output goes, how much memory it takes, how it ends.

It runs in a session of its own, so that Ctrl-C reaches only us, and we end it by its pid.
"""

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

_SAMPLE_SECONDS = 0.05
_GRACE_SECONDS = 10.0
_TAIL_LINES = 15


class ChildFailed(Exception):
    """A child ended or fell silent when it should have answered. Shows the end of its log."""


class Child:
    """A running process; `log` gets what it prints. With `piped`, stdin and stdout are ours."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: Path, *, piped: bool = False
    ) -> None:
        self._log = log
        self._peak_rss = 0
        pipe = subprocess.PIPE if piped else None
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or stream,
                stderr=stream,
                start_new_session=True,
            )
        self._stats = psutil.Process(self._process.pid)

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """stdin and stdout of a piped child."""
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("this child has no pipes")
        return self._process.stdin, self._process.stdout

    @property
    def peak_rss(self) -> int:
        """The most resident bytes seen while it was watched."""
        return self._peak_rss

    @property
    def cpu_seconds(self) -> float:
        times = self._stats.cpu_times()
        return float(times.user + times.system)

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise self.failure(f"ended with exit code {self._process.returncode}")

    def failure(self, problem: str) -> ChildFailed:
        tail = "\n".join(self.output().splitlines()[-_TAIL_LINES:])
        return ChildFailed(f"{self._log.stem} {problem}. Its last words:\n{tail}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Sample the resident memory meanwhile."""
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(done,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def end(self) -> None:
        """SIGTERM, and SIGKILL if that is not heard. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _watch(self, done: threading.Event) -> None:
        try:
            self._sample()
            while not done.wait(_SAMPLE_SECONDS):
                self._sample()
            self._sample()
        except psutil.NoSuchProcess:
            return  # whoever talks to it will notice

    def _sample(self) -> None:
        self._peak_rss = max(self._peak_rss, self._stats.memory_info().rss)
