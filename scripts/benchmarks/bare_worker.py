"""The process of the bare batch loop: mlx-lm's BatchGenerator, driven by JSON lines on stdin.

    {"prompts": [[id, ...], ...], "out": 32, "late": null}   -> streams, peak memory
    {"chunk": [id, ...], "size": 0}                          -> seconds of each prefill chunk

The chunk is measured on our own ModelRunner: it is the unit in which our server reads a long
prompt, so it says how long a running stream has to wait at least.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from omlx_server.compute.bare import mlx_lm_caches
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import LoadedModel, load
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.request import RequestId
from omlx_server.core.step import Chunk, SequenceId, Step


class Intruder(NamedTuple):
    """The late prompt, once it is in the generator."""

    uid: int
    sent: float


def main() -> None:
    """Answer one line per line, until stdin ends."""
    loaded = load(Path(sys.argv[1]))
    _reply({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        if "chunk" in job:
            _reply(time_chunks(loaded, **job))
        else:
            with mlx_lm_caches(loaded.model):
                _reply(run(loaded, **job))


def run(
    loaded: LoadedModel, prompts: list[list[int]], out: int, late: dict[str, Any] | None
) -> dict[str, Any]:
    """One workload; every prompt is inserted before the first step."""
    mx.reset_peak_memory()
    generator = BatchGenerator(loaded.model, max_tokens=out)
    start = time.perf_counter()
    uids = generator.insert(prompts)
    times: dict[int, list[float]] = {uid: [] for uid in uids}
    intruder: Intruder | None = None
    unfinished = len(prompts) + bool(late)
    while unfinished:
        _, responses = generator.next()
        now = time.perf_counter() - start
        for response in responses:
            times[response.uid].append(now)
            unfinished -= response.finish_reason is not None
        if late and intruder is None and min(map(len, times.values())) >= late["after"]:
            (uid,) = generator.insert([late["tokens"]], max_tokens=[1])
            intruder = Intruder(uid, sent=now)
            times[uid] = []
    generator.close()
    return {
        "streams": [{"sent": 0.0, "times": times[uid]} for uid in uids],
        "late": {"sent": intruder.sent, "times": times[intruder.uid]} if intruder else None,
        "peak_memory": mx.get_peak_memory(),
    }


def time_chunks(loaded: LoadedModel, chunk: Sequence[int], size: int) -> dict[str, Any]:
    """Seconds of each whole chunk of a prompt, one after the other as the server reads them. Size 0
    is the server's own default."""
    size = size or device_policy.current().chunk
    runner = ModelRunner(loaded)
    id = SequenceId(RequestId("chunk"), 0)
    seconds = []
    for first in range(0, len(chunk) - size + 1, size):
        begun = time.perf_counter()
        step = Step(chunks=(Chunk(id, first, tuple(chunk[first : first + size])),))
        runner.prefill(step).wait()
        seconds.append(time.perf_counter() - begun)
    runner.reset()
    return {"seconds": seconds}


def _reply(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
