"""`omlx-server status`: prints what a running server reports. Imports no HTTP library."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from omlx_server.cli.models.server import chunk_sizes_in_words
from omlx_server.cli.server_client.http import HttpReply, ServerClient, server_of
from omlx_server.cli.server_client.page import page_url, signed_in_url
from omlx_server.cli.shell.output import counted, show_result
from omlx_server.doctor.finding import in_words

_KEY_HINT = "give one to this command as OMLX_API_KEY"
Samples = Mapping[tuple[str, str], float]
"""Values by the metric's name and its tier."""


def run(*, as_json: bool, url: str, api_key: str, config: Path | None, sets: Sequence[str]) -> int:
    server = server_of(url, api_key, config, sets)
    report = _report(server)
    lines = [*_report_lines(report)]
    if report["ready"] and not as_json and sys.stdout.isatty() and (page := page_url(server)):
        lines.append(f"page    {signed_in_url(server, page)}")
    show_result(report, lines, as_json=as_json)
    return 0 if report["ready"] else 1


def _report(server: ServerClient) -> dict[str, Any]:
    health_reply, version_reply = server.get("/health"), server.get("/version")
    health = health_reply.json_object or {}
    # Without a key /health tells only whether the server lives.
    wants_key = version_reply.status == HTTPStatus.UNAUTHORIZED
    key_problem = f"{_error_message(version_reply)} ({_KEY_HINT})"
    report = {
        "url": server.url,
        "ready": health_reply.status == HTTPStatus.OK and ("engines" in health or wants_key),
        "version": version_reply.text("version"),
        "models": server.models(),
        "engines": health.get("engines") or [],
        "memory": health.get("memory"),
        "config": health.get("config"),
        "cluster": health.get("cluster") or [],
        "problem": key_problem if wants_key else _error_message(health_reply),
    }
    return report | _metrics(server)


def _error_message(reply: HttpReply) -> str | None:
    message = reply.error.get("message")
    return message if isinstance(message, str) else None


def _metrics(server: ServerClient) -> dict[str, Any]:
    reply = server.get("/metrics")
    if reply.status != HTTPStatus.OK:
        return {}
    samples = samples_of(reply.body.decode(errors="replace"))
    names = {"drafted": "omlx_draft_tokens_total", "accepted": "omlx_accepted_draft_tokens_total"}
    drafts = {key: int(samples.get((name, ""), 0)) for key, name in names.items()}
    experts = {
        kind: int(samples.get(("omlx_experts_total", kind), 0)) for kind in ("used", "missing")
    }
    experts["read_bytes"] = int(samples.get(("omlx_experts_read_bytes_total", ""), 0))
    return {**_cache_metrics(samples), "drafts": drafts, "experts": experts}


def _cache_metrics(samples: Samples) -> dict[str, Any]:
    tiers = {tier for name, tier in samples if name == "omlx_cache_budget_bytes"}
    cache = {
        tier: {
            "bytes": int(samples.get(("omlx_cache_bytes", tier), 0)),
            "budget_bytes": int(samples["omlx_cache_budget_bytes", tier]),
            "blocks": int(samples.get(("omlx_cache_blocks", tier), 0)),
        }
        for tier in sorted(tiers, reverse=True)
    }
    if "cold" in cache:
        for name in ("written_today_bytes", "written_bytes_total", "daily_writes_bytes"):
            nbytes = int(samples.get((f"omlx_cache_{name}", ""), 0))
            cache["cold"][name.removesuffix("_total")] = nbytes
    queried = _counter(samples, "prefix_cache_queries_total")
    # The last token of a prompt is never looked up; a prompt with several choices is looked up
    # several times.
    all_tokens = max(queried, _counter(samples, "prompt_tokens_total"))
    hits = _counter(samples, "prefix_cache_hits_total")
    return {"cache": cache, "hit_ratio": hits / all_tokens if all_tokens else None}


def _counter(samples: Samples, name: str) -> float:
    """Return a counter that vLLM has too; a server shows it under either prefix."""
    return samples.get((f"vllm:{name}", ""), samples.get((f"omlx_{name}", ""), 0))


def samples_of(text: str) -> Samples:
    """Return Prometheus samples, summed by name and label `tier` ("" if none)."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: dict[tuple[str, str], float] = {}
    with suppress(ValueError):  # another program's text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, sample.labels.get("tier", "")
                samples[key] = samples.get(key, 0) + sample.value
    return samples


def _report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    version = f", omlx-server {report['version']}" if report["version"] else ""
    yield f"{report['url']}: {'ready' if report['ready'] else 'not ready'}{version}"
    yield from _problem_lines(report)
    if report["models"]:
        yield f"models  {', '.join(report['models'])}"
    for rank in report.get("cluster", ()):
        yield f"rank    {_rank_in_words(rank)}"
    for engine in report["engines"]:
        yield f"load    {_load_in_words(engine)}"
        if chunks := chunk_sizes_in_words(engine):
            yield f"chunks  {_model_prefix(engine)}{chunks}"
        if engine.get("problem"):
            yield f"problem {engine['problem']}"
    if report["memory"]:
        yield f"memory  {_memory_in_words(report['memory'])}"
    for tier, use in report.get("cache", {}).items():
        used, budget = in_words(use["bytes"]), in_words(use["budget_bytes"])
        yield f"cache   {tier}: {counted(use['blocks'], 'block')}, {used} of {budget}"
        if tier == "cold":
            yield f"written {_writes_in_words(use)}"
    if report.get("hit_ratio") is not None:
        yield f"hits    {percent(report['hit_ratio'])} of all prompt tokens came from the cache"
    drafts = report.get("drafts") or {}
    if drafts.get("drafted"):
        right = percent(drafts["accepted"] / drafts["drafted"])
        yield f"drafts  {right} of {drafts['drafted']:,} drafted tokens were right"
    experts = report.get("experts") or {}
    if experts.get("used"):
        present = percent(1 - experts["missing"] / experts["used"])
        read = in_words(experts["read_bytes"])
        yield f"experts {present} were in memory when they were needed, {read} were read"


def _writes_in_words(cold: Mapping[str, int]) -> str:
    most = cold["daily_writes_bytes"]
    limit = f" of {in_words(most)}" if most else ""
    today, since_start = in_words(cold["written_today_bytes"]), in_words(cold["written_bytes"])
    return f"{today}{limit} today, {since_start} since the start"


def _problem_lines(report: Mapping[str, Any]) -> Iterator[str]:
    if report["problem"]:
        yield f"problem {report['problem']}"
    config = report["config"] or {}
    if config.get("problem"):
        yield f"config  what has changed is not in force: {config['problem']}"
    if config.get("needs_restart"):
        yield f"config  needs a restart: {', '.join(config['needs_restart'])}"


def _load_in_words(engine: Mapping[str, Any]) -> str:
    counts = (f"{engine.get(name, 0)} {name}" for name in ("running", "prefilling", "waiting"))
    return f"{_model_prefix(engine)}{', '.join(counts)} ({engine.get('state', '?')})"


def _rank_in_words(rank: Mapping[str, Any]) -> str:
    active_bytes = rank.get("active_bytes")
    details = "" if active_bytes is None else f", {in_words(active_bytes)}"
    if rank.get("problem"):
        details += f", {rank['problem']}"
    return f"{rank.get('rank', '?')} on {rank.get('host', '?')}: {rank.get('status', '?')}{details}"


def _model_prefix(engine: Mapping[str, Any]) -> str:
    return f"{engine['model']}: " if engine.get("model") else ""


def _memory_in_words(memory: Mapping[str, Any]) -> str:
    sizes = {name: memory.get(name, 0) for name in ("weights", "live", "blocks", "checkpoints")}
    words = ", ".join(f"{name} {in_words(size)}" for name, size in sizes.items() if size)
    return f"{words or 'nothing'} of {in_words(memory.get('limit', 0))}"


def percent(share: float) -> str:
    """Return `share` (0 to 1) as a percentage; only exactly 0 and 1 become 0.0% and 100.0%."""
    if 0 < share < 1:
        share = min(max(share, 0.001), 0.999)
    return f"{share:.1%}"
