"""What /metrics tells of several models: each by its name, and what was counted stays."""

import platform
import re
import threading
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from omlx_server import __version__
from omlx_server.api.metrics.metrics import AppMetrics
from omlx_server.core.memory.guard import Relief
from omlx_server.core.prefix_cache.report import CacheReport
from omlx_server.core.scheduler.watchdog import Stalls
from omlx_server.engine.messages import Counted
from tests.api.fixed import Vital, fixed_models
from tests.api.harness import ServerProcess, samples, serving, wait_for
from tests.api.small_models import ask, order, save, sets

STORY = "A story that is kept, and told again. " * 20
OF_A_MODEL = re.compile(r'model_name="([^"]*)"')


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text: str, name: str) -> dict[str, float]:
    """A family's samples by their model."""
    found = (sample for family in families(text).values() for sample in family.samples)
    return {s.labels["model_name"]: s.value for s in found if s.name == name}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two models with room for one."""
    root = tmp_path_factory.mktemp("pair")
    for name, kind in (("a", "llama"), ("b", "qwen3")):
        save(root / "org" / name, kind)
    more = ("models.max_loaded=1", "cache.block_tokens=16")
    with serving("org/a", tmp_path_factory.mktemp("server"), *sets(root, *more)) as server:
        yield server


def text_of(server: ServerProcess) -> str:
    return server.http.get(f"{server.url}/metrics").raise_for_status().text


def test_a_model_counts_from_zero(pair: ServerProcess) -> None:
    """What Prometheus sees for the first time with a value has no increase."""
    text = text_of(pair)
    for name in (
        "vllm:num_requests_running",
        "vllm:prefix_cache_queries_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_count",
    ):
        assert values(text, name) == {"org/a": 0}


def test_each_model_is_counted_under_its_name_and_stays(pair: ServerProcess) -> None:
    prompts = dict.fromkeys(("org/a", "org/b"), 0)
    for name in ("a", "b", "b"):
        usage = ask(pair, name, STORY, ignore_eos=True).raise_for_status().json()["usage"]
        prompts[f"org/{name}"] += usage["prompt_tokens"]
    text = text_of(pair)
    assert values(text, "vllm:prompt_tokens_total") == prompts
    assert values(text, "vllm:generation_tokens_total") == {"org/a": 6, "org/b": 12}
    assert values(text, "vllm:request_success_total") == {"org/a": 1, "org/b": 2}
    hits = values(text, "vllm:prefix_cache_hits_total")
    assert hits["org/b"] > 100 > hits["org/a"]
    assert values(text, "vllm:num_requests_running") == {"org/a": 0, "org/b": 0}
    usage = values(text, "vllm:kv_cache_usage_perc")
    assert usage["org/a"] == 0 < usage["org/b"] < 1
    order(pair, "unload", "b").raise_for_status()
    text = text_of(pair)
    assert values(text, "vllm:prefix_cache_hits_total") == hits
    assert values(text, "vllm:kv_cache_usage_perc") == {"org/a": 0, "org/b": 0}


def test_a_model_is_told_as_loaded_until_it_leaves(pair: ServerProcess) -> None:
    def loaded() -> dict[str, float]:
        return values(text_of(pair), "omlx_model_loaded")

    for name in "ab":
        ask(pair, name).raise_for_status()
        assert loaded()[f"org/{name}"] == 1
    assert loaded() == {"org/a": 0, "org/b": 1}
    order(pair, "unload", "b").raise_for_status()
    assert loaded() == {"org/a": 0, "org/b": 0}


def test_the_versions_are_labels(pair: ServerProcess) -> None:
    (sample,) = families(text_of(pair))["omlx_build_info"].samples
    assert sample.value == 1
    assert sample.labels == {
        "version": __version__,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
    }


def test_no_counter_falls_while_models_come_and_go(pair: ServerProcess) -> None:
    """Looked at as often as one can, so that no moment in between is left out."""
    fallen: list[str] = []
    looks, done = 0, threading.Event()

    def watch() -> None:
        nonlocal looks
        before: dict[str, float] = {}
        with httpx.Client(trust_env=False, timeout=60) as http:
            while not done.is_set():
                found = http.get(f"{pair.url}/metrics").text
                now = {
                    line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
                    for line in found.splitlines()
                    if re.match(r"\w+:?\w*_(total|count|sum|bucket)[{ ]", line)
                }
                fallen.extend(name for name, value in before.items() if now.get(name, -1) < value)
                before, looks = now, looks + 1

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for name in "abab":
            ask(pair, name, STORY).raise_for_status()
        order(pair, "unload", "b").raise_for_status()
        wait_for(lambda: looks > 20)
    finally:
        done.set()
        watching.join(60)
    assert fallen == []


def test_every_family_says_in_a_sentence_what_it_is(pair: ServerProcess) -> None:
    ask(pair, "a").raise_for_status()
    found = families(text_of(pair))
    told = {name: f.documentation for name, f in found.items() if not name.endswith("_created")}
    assert len(told) > 25
    for name, text in told.items():
        assert text.endswith(".") and text.count(" ") > 2, name
        for unit in ("seconds", "bytes", "tokens"):
            if name.endswith(f"_{unit}"):
                assert unit in text.lower(), name
        if found[name].type == "histogram":
            assert text.startswith("Seconds"), name


# --- Without a server ----------------------------------------------------------------------------


PREEMPTED_TWICE = Counter({Relief.PREEMPT: 2})


class Twice(Vital):
    """Two models that have counted; the second one's directory has a name that is no text."""

    counted = MappingProxyType(
        {
            "org/a": Counted(
                CacheReport(nbytes=10, budget=40, queried_tokens=5), PREEMPTED_TWICE, Stalls(1)
            ),
            'org/b\udcff"{}\n': Counted(
                CacheReport(nbytes=20, budget=40, queried_tokens=7), stalls=Stalls(2, 1)
            ),
        }
    )


def test_failures_of_the_device_are_counted_by_class() -> None:
    class Failing(Vital):
        device_errors = MappingProxyType({"watchdog": 2})

    found = samples(AppMetrics(fixed_models(vitals=Failing())).snapshot().text().decode())
    assert found['omlx_device_errors_total{class="watchdog"}'] == 2
    assert found['omlx_device_errors_total{class="memory"}'] == 0


def test_the_sum_over_models_is_that_of_the_server() -> None:
    found = samples(AppMetrics(fixed_models(vitals=Twice())).snapshot().text().decode())
    assert found["vllm:prefix_cache_queries_total"] == 12
    assert found["vllm:num_preemptions_total"] == 2
    assert found['omlx_stalls_total{outcome="restarted"}'] == 3
    assert found['omlx_stalls_total{outcome="ended"}'] == 1
    assert found["vllm:kv_cache_usage_perc"] == 0.75
    assert found['omlx_cache_bytes{kind="blocks",tier="hot"}'] == 30
    assert found['omlx_cache_budget_bytes{tier="hot"}'] == 40


def test_a_name_that_is_no_text_is_told_all_the_same() -> None:
    text = AppMetrics(fixed_models(vitals=Twice())).snapshot().text().decode()
    assert values(text, "vllm:prefix_cache_queries_total") == {"org/a": 5, 'org/b?"{}\n': 7}


@pytest.mark.parametrize("shared", ["vllm:", "omlx_"])
def test_all_of_the_shared_names_have_the_label(shared: str) -> None:
    metrics = AppMetrics(fixed_models(vitals=Twice()), shared)
    metrics.of("org/a").follow(3).finished("stop")
    text = metrics.snapshot().text().decode()
    of_models = re.compile(r"(vllm:|omlx_(?!cache|memory|build|connections|bodies|device))")
    names = [line for line in text.splitlines() if of_models.match(line)]
    assert len(names) > 50
    assert [line for line in names if not OF_A_MODEL.search(line)] == []


def test_a_file_of_a_model_that_was_never_loaded_is_not_told(tmp_path: Path) -> None:
    """Names of requests are no labels: who asks could make as many as they like."""
    metrics = AppMetrics(fixed_models())
    assert "model_name" not in metrics.snapshot().text().decode()


def test_characters_of_texts_are_counted_over_all_loads_of_a_model(pair: ServerProcess) -> None:
    def told() -> dict[str, float]:
        found = samples(text_of(pair))
        return {
            s: found[f'omlx_text_characters_total{{source="{s}"}}'] for s in ("encoded", "kept")
        }

    ask(pair, "a", STORY).raise_for_status()
    first = told()
    ask(pair, "a", STORY).raise_for_status()
    second = told()
    assert second["encoded"] == first["encoded"]
    assert second["kept"] - first["kept"] > len(STORY)
    order(pair, "unload", "a").raise_for_status()
    assert told() == second
    ask(pair, "a", STORY).raise_for_status()
    assert told()["encoded"] - second["encoded"] > len(STORY)
