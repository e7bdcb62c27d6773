"""The finding on a phase: what is a fault, what is only told."""

import json
import signal
from collections import Counter

import pytest

from omlx_server.doctor.finding import Level
from omlx_server.doctor.stress.report import PhaseFigures, finding_of


@pytest.mark.parametrize(
    ("figures", "level", "words"),
    [
        (PhaseFigures(requests=3), Level.OK, "survived 0 s, 3 answers"),
        (PhaseFigures(requests=3, unfinished=2), Level.OK, "survived"),
        (PhaseFigures(), Level.WARN, "no answer came in time"),
        (PhaseFigures(requests=3, different=1), Level.WARN, "1 answers differ"),
        (PhaseFigures(requests=3, refused=Counter(queue_full=2)), Level.WARN, "queue_full 2"),
        (PhaseFigures(requests=3, errors=Counter(model_error=1)), Level.FAIL, "model_error 1"),
        (PhaseFigures(requests=3, device_errors=2), Level.FAIL, "device_error 2"),
        (PhaseFigures(requests=3, stalls=1), Level.FAIL, "stall 1"),
        (PhaseFigures(requests=3, is_ready=False), Level.FAIL, "does not answer any more"),
        (PhaseFigures(exit_code=1), Level.FAIL, "the server ended (exit code 1)"),
        (PhaseFigures(exit_code=-signal.SIGABRT), Level.FAIL, "the server ended (SIGABRT)"),
    ],
)
def test_each_fault_is_found(figures: PhaseFigures, level: Level, words: str) -> None:
    finding = finding_of("two streams", figures)
    assert finding.level is level
    assert words in finding.says


def test_the_figures_are_json_with_counts_by_code() -> None:
    figures = PhaseFigures(errors=Counter(model_error=2), exit_code=-9)
    read = json.loads(json.dumps(figures.as_json()))
    assert read["errors"] == {"model_error": 2}
    assert (read["survived"], read["exit_code"]) == (False, -9)
