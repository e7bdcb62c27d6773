"""A result of scripts/bench in the form to share."""

import json
from datetime import UTC, datetime
from pathlib import Path

from omlx_server.doctor.shareable import SCHEMA
from scripts.benchmarks import share
from scripts.benchmarks.metrics import Better, Metric, Requirement, Spec
from scripts.benchmarks.plan import Plan
from scripts.benchmarks.report import Report

HIGHER = Better.HIGHER


def test_figures_are_shared_in_the_form_of_a_self_test(tmp_path: Path) -> None:
    total = Spec("total_1", "1 stream", "tok/s", HIGHER)
    result = Report(
        created=datetime(2026, 1, 2, tzinfo=UTC),
        machine={"device": "CPU"},
        model="starter",
        plan=Plan(repeats=1),
        metrics=[Metric(total, ({"ours": 48.0, "bare": 50.0},))],
        requirements=[
            Requirement("as fast as bare", 0.96, 0.95, HIGHER),
            Requirement("8 streams", 0.8, 0.95, HIGHER),
            Requirement("not measured", None, 1, HIGHER),
        ],
    )
    share.write(result, tmp_path / "r.json", quick=True)
    written = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (written["kind"], written["schema"]) == ("omlx-server bench", SCHEMA)
    assert (written["ok"], written["quick"]) == (True, True)
    assert written["versions"]["omlx-server"]
    assert written["model"] == {"name": "starter"}
    assert [(row["what"], row["level"]) for row in written["checks"]] == [
        ("as fast as bare", "ok"),
        ("8 streams", "warn"),
    ]
    assert written["metrics"][0]["rounds"] == [{"ours": 48.0, "bare": 50.0}]
