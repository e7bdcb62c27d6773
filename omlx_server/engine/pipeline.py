"""Order of one model's steps on the device (compute/hardware/device_policy.py). mlx thread.

A device that runs beside the host always has work, and the host waits once in a step:

    host    plan N   decode N   take tokens N-1   masks N   chunks N   take tokens N
    device  chunks N-1 ........ decode N ............................  chunks N ....

A step without chunks and drafts has its tokens taken in the next turn; one with drafts before its
chunks are launched. When tokens have come, chunks launched before their decode are done.

Where a launch takes as long as the work (CPU), or several models work, a step with chunks ends in
its turn:

    host    plan N   decode N   take tokens N-1   take tokens N   chunks N, and wait for them

There, the first tokens of an answer and constrained ones are taken in their own turn too.
"""

import time
from collections.abc import Callable, Sequence

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.launched import ChunksLaunched, Launched
from omlx_server.core.request import TokenEvent
from omlx_server.core.step import Step
from omlx_server.engine.model_instance import ModelInstance


class Pipeline:
    """Runs the steps of `instance`; `send` gets the events of each."""

    def __init__(
        self, instance: ModelInstance, send: Callable[[Sequence[TokenEvent]], None]
    ) -> None:
        self._instance = instance
        self._send = send
        self.clear()

    def clear(self) -> None:
        self._ahead: Launched | None = None  # step whose tokens are not taken yet
        self._chunks: ChunksLaunched | None = None  # chunks that may not be done yet
        self._chunks_began = 0.0  # time.perf_counter() since which the device works on them

    @property
    def is_empty(self) -> bool:
        return self._ahead is None and self._chunks is None

    @property
    def is_ahead(self) -> bool:
        return self._ahead is not None

    def run(self, step: Step | None, *, is_only_model: bool, has_jobs: bool = False) -> None:
        """Launch a step and take the tokens of the last one; None finishes all."""
        launched = self._instance.launch(step) if step is not None else None
        self.take_ahead()
        if launched is None:
            self._finish_chunks()
            return
        self._instance.sample(launched)
        if device_policy.current().beside_host and is_only_model and not has_jobs:
            self._run_beside(launched)
        elif launched.at_once or not is_only_model:
            self._run_in_order(launched)
        else:
            self._ahead = launched

    def take_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._take_tokens(ahead)

    def _run_beside(self, launched: Launched) -> None:
        if launched.is_verifying:  # wrong drafts are removed before rows join
            self._take_tokens(launched)
        launched_at, earlier = time.perf_counter(), self._chunks
        chunks = self._launch_chunks(launched) if launched.prefilling else None
        if not launched.at_once:
            self._ahead = launched
        elif not launched.is_verifying:
            self._take_tokens(launched)
        if chunks is not None:
            self._finish_chunks()  # the earlier ones ran while these were launched
            # The device began these when they were launched or, if later, after the earlier ones.
            self._chunks = chunks
            self._chunks_began = launched_at if earlier is None else time.perf_counter()

    def _run_in_order(self, launched: Launched) -> None:
        self._take_tokens(launched)
        if launched.prefilling:
            self._finish_chunks()
            self._chunks_began = time.perf_counter()
            self._chunks = self._launch_chunks(launched)
            self._finish_chunks()

    def _take_tokens(self, launched: Launched) -> None:
        self._send(self._instance.take_tokens(launched))
        if launched.ids and self._chunks is not None:
            self._note_chunks_done(decode_seconds=self._instance.decode_times.plain_seconds)

    def _launch_chunks(self, launched: Launched) -> ChunksLaunched:
        chunks, events = self._instance.launch_chunks(launched)
        self._send(events)
        return chunks

    def _finish_chunks(self) -> None:
        if self._chunks is not None:
            self._chunks.wait()
            self._note_chunks_done()

    def _note_chunks_done(self, decode_seconds: float = 0.0) -> None:
        assert self._chunks is not None
        chunks, self._chunks = self._chunks, None
        seconds = time.perf_counter() - self._chunks_began - decode_seconds
        self._instance.note_chunks_done(chunks, max(0.0, seconds))
