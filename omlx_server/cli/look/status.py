"""`omlx-server status`: prints what a running server reports. Imports no HTTP library."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omlx_server.cli.models.server import in_chunks
from omlx_server.cli.server_client.address import server_of
from omlx_server.cli.server_client.http import HttpReply, ServerClient
from omlx_server.cli.shell.output import count_blocks, show_result
from omlx_server.doctor.finding import in_words

_KEY_HINT = "give one to this command as OMLX_API_KEY"
Samples = Mapping[tuple[str, str], float]


def run(*, as_json: bool, url: str, api_key: str, config: Path | None, sets: Sequence[str]) -> int:
    server = server_of(url, api_key, config, sets)
    report = _report(server)
    show_result(report, _lines(report), as_json=as_json)
    return 0 if report["ready"] else 1


def _report(server: ServerClient) -> dict[str, Any]:
    health = server.get("/health")
    answer = health.json_object or {}
    about = server.get("/version")
    wants_key = about.status == 401
    report = {
        "url": server.url,
        "ready": health.status == 200 and ("engines" in answer or wants_key),
        "version": about.text("version"),
        "models": server.models(),
        "engines": answer.get("engines") or [],
        "memory": answer.get("memory"),
        "config": answer.get("config"),
        "cluster": answer.get("cluster") or [],
        "problem": f"{_refusal(about)} ({_KEY_HINT})" if wants_key else _refusal(health),
    }
    return report | _counted(server)


def _refusal(reply: HttpReply) -> str | None:
    message = reply.error.get("message")
    return message if isinstance(message, str) else None


def _counted(server: ServerClient) -> dict[str, Any]:
    reply = server.get("/metrics")
    if reply.status != 200:
        return {}
    samples = samples_of(reply.body.decode(errors="replace"))
    names = {"drafted": "omlx_draft_tokens_total", "accepted": "omlx_accepted_draft_tokens_total"}
    drafts = {key: int(samples.get((name, ""), 0)) for key, name in names.items()}
    return {**_cache(samples), "drafts": drafts}


def _cache(samples: Samples) -> dict[str, Any]:
    tiers = {tier for name, tier in samples if name == "omlx_cache_budget_bytes"}
    cache = {
        tier: {
            "bytes": int(samples.get(("omlx_cache_bytes", tier), 0)),
            "budget_bytes": int(samples["omlx_cache_budget_bytes", tier]),
            "blocks": int(samples.get(("omlx_cache_blocks", tier), 0)),
        }
        for tier in sorted(tiers, reverse=True)
    }
    queried, hit = (_shared(samples, f"prefix_cache_{name}_total") for name in ("queries", "hits"))
    # The last token of a prompt is never looked up; a prompt with several choices is looked up
    # several times.
    total = max(queried, _shared(samples, "prompt_tokens_total"))
    return {"cache": cache, "hit_ratio": hit / total if total else None}


def _shared(samples: Samples, name: str) -> float:
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


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    version = f", omlx-server {report['version']}" if report["version"] else ""
    yield f"{report['url']}: {'ready' if report['ready'] else 'not ready'}{version}"
    yield from _problems(report)
    if report["models"]:
        yield f"models  {', '.join(report['models'])}"
    for rank in report.get("cluster", ()):
        yield f"rank    {_rank(rank)}"
    for engine in report["engines"]:
        yield f"load    {_load(engine)}"
        if chunks := in_chunks(engine):
            yield f"chunks  {_of(engine)}{chunks}"
        if engine.get("problem"):
            yield f"problem {engine['problem']}"
    if report["memory"]:
        yield f"memory  {_memory(report['memory'])}"
    for tier, line in report.get("cache", {}).items():
        used, budget = in_words(line["bytes"]), in_words(line["budget_bytes"])
        yield f"cache   {tier}: {count_blocks(line['blocks'])}, {used} of {budget}"
    if report.get("hit_ratio") is not None:
        yield f"hits    {percent(report['hit_ratio'])} of all prompt tokens came from the cache"
    drafts = report.get("drafts") or {}
    if drafts.get("drafted"):
        right = percent(drafts["accepted"] / drafts["drafted"])
        yield f"drafts  {right} of {drafts['drafted']:,} drafted tokens were right"


def _problems(report: Mapping[str, Any]) -> Iterator[str]:
    if report["problem"]:
        yield f"problem {report['problem']}"
    config = report["config"] or {}
    if config.get("problem"):
        yield f"config  what has changed is not in force: {config['problem']}"
    if config.get("needs_restart"):
        yield f"config  needs a restart: {', '.join(config['needs_restart'])}"


def _load(engine: Mapping[str, Any]) -> str:
    parts = (f"{engine.get(name, 0)} {name}" for name in ("running", "prefilling", "waiting"))
    return f"{_of(engine)}{', '.join(parts)} ({engine.get('state', '?')})"


def _rank(rank: Mapping[str, Any]) -> str:
    active_bytes = rank.get("active_bytes")
    more = (in_words(active_bytes) if active_bytes is not None else "", rank.get("problem") or "")
    details = "".join(f", {part}" for part in more if part)
    return f"{rank.get('rank', '?')} on {rank.get('host', '?')}: {rank.get('status', '?')}{details}"


def _of(engine: Mapping[str, Any]) -> str:
    return f"{engine['model']}: " if engine.get("model") else ""


def _memory(memory: Mapping[str, Any]) -> str:
    limit = memory.get("limit", 0)
    lines = {name: memory.get(name, 0) for name in ("weights", "live", "blocks", "checkpoints")}
    parts = ", ".join(f"{name} {in_words(size)}" for name, size in lines.items() if size)
    return f"{parts or 'nothing'} of {in_words(limit)}"


def percent(share: float) -> str:
    """Return `share` (0 to 1) as a percentage; only exactly 0 and 1 become 0.0% and 100.0%."""
    if 0 < share < 1:
        share = min(max(share, 0.001), 0.999)
    return f"{share:.1%}"
