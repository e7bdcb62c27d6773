"""The Grafana board asks for nothing that /metrics has not: names and labels."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.harness import REPO, ServerProcess, serving

BOARD = json.loads((REPO / "config" / "grafana.json").read_text())
NAME = re.compile(r"\b(?:vllm:|omlx_)\w+")
GROUPED = re.compile(r"by \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")
GIVEN = {"le", "instance"}


@pytest.fixture(scope="module")
def told(
    tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, set[str]]]:
    """Labels by the names of samples, of a server that has answered once."""
    sets = (f"models.dirs={tiny_models}", "memory.activation_reserve=64MB")
    with serving("org/tiny", tmp_path_factory.mktemp("board"), *sets) as server:
        server.chat("Hello board", max_tokens=3)
        yield samples(server)


def samples(server: ServerProcess) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(server.http.get(f"{server.url}/metrics").text):
        # A counter by reasons has no sample before there is one; its name is there.
        found.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def targets() -> list[dict[str, Any]]:
    return [target for panel in BOARD["panels"] for target in panel.get("targets", [])]


def test_all_that_the_board_asks_for_is_there(told: dict[str, set[str]]) -> None:
    queries = [str(variable.get("query", "")) for variable in BOARD["templating"]["list"]]
    text = " ".join([*queries, *(target["expr"] for target in targets())])
    asked = set(NAME.findall(text))
    assert len(asked) > 20
    assert sorted(asked - told.keys()) == []


def test_labels_that_it_groups_by_are_there(told: dict[str, set[str]]) -> None:
    for target in targets():
        (name,) = set(NAME.findall(target["expr"])) if "by (" in target["expr"] else ("",)
        labels = {
            label.strip() for group in GROUPED.findall(target["expr"]) for label in group.split(",")
        }
        assert set(LEGEND.findall(target["legendFormat"])) <= labels
        if name and told[name]:
            assert labels - GIVEN <= told[name], target


def test_what_is_told_by_model_can_be_seen_by_model(told: dict[str, set[str]]) -> None:
    """vLLM's boards choose by that label, too."""
    names = [variable["name"] for variable in BOARD["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "model"]
    shared = {name for name in told if name.startswith("vllm:") and told[name]}
    assert len(shared) > 10
    assert [name for name in shared if "model_name" not in told[name]] == []
    for target in targets():
        asked, chosen = target["expr"], 'model_name=~"$model"'
        assert asked.count("vllm:") == asked.count(chosen), asked


def test_nearly_all_that_there_is_to_see_is_on_the_board(told: dict[str, set[str]]) -> None:
    text = json.dumps(BOARD)
    left = {name for name in told if name.startswith(("vllm:", "omlx_"))} - set(NAME.findall(text))
    left = {name for name in left if not name.endswith(("_sum", "_count", "_created", "_bucket"))}
    histograms = {name.removesuffix("_bucket") for name in told if name.endswith("_bucket")}
    # Counts of blocks beside the counts of bytes, and what goes wrong with a disk.
    assert left - histograms == {
        "omlx_cache_written_blocks_total",
        "omlx_cache_read_blocks_total",
        "omlx_cache_dropped_total",
        "omlx_cache_read_failures_total",
    }


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
