"""The short form of the campaign of faults."""

from pathlib import Path

from tests.campaigns import models
from tests.campaigns.faults import TINY, campaign


def test_a_cold_directory_that_breaks_under_load_costs_time_and_nothing_else(
    tmp_path: Path,
) -> None:
    model, settings = models.find("tiny", tmp_path / "models")
    outcome = campaign(model, settings, tmp_path, TINY, seconds=0.1)
    assert [str(phase) for phase in outcome.phases if not phase.is_right] == []
    assert outcome.is_right, outcome.restarted
    assert len(outcome.phases) > 10, outcome.skipped
