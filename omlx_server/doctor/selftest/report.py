"""The report of a self-test, to share."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from omlx_server.doctor.selftest.check import Check
from omlx_server.doctor.selftest.subject import Subject
from omlx_server.doctor.shareable import shareable
from omlx_server.models.description import described
from omlx_server.wiring.model_factory import limits

_KIND = "omlx-server self-test"


def document(subject: Subject, checks: Sequence[Check], *, quick: bool) -> dict[str, Any]:
    return shareable(
        _KIND,
        model=_model(subject),
        settings=_settings(subject),
        checks=[(check.finding, check.figures) for check in checks],
        quick=quick,
        seed=subject.seed,
    )


def _model(subject: Subject) -> dict[str, Any]:
    dims, about = subject.loaded.dims, described(subject.located.path)
    return {
        "name": subject.located.names[0],
        "type": about.model_type if about else "",
        "weight_bytes": subject.loaded.weight_bytes,
        "dims": asdict(dims),
        "drafts": subject.loaded.drafter is not None or subject.loaded.has_heads,
    }


def _settings(subject: Subject) -> dict[str, Any]:
    settings, names = subject.settings, subject.located.names
    kv, scheduler = settings.kv_cache_of(names), limits(settings, names)
    return {
        "kv_cache": {"scheme": kv.scheme, "bits": kv.bits, "group_size": kv.group_size},
        "cache.enabled": settings.cache.enabled,
        "cache.hot_cache_only": settings.cache.hot_cache_only,
        "cache.block_tokens": settings.cache.block_tokens,
        "prefill_chunk_tokens": scheduler.prefill_chunk_tokens,
        "max_batch_size": scheduler.max_batch_size,
        "speculation": settings.speculation_of(names).mode,
        "memory.limit": settings.memory.limit,
        "memory.activation_reserve": settings.memory.activation_reserve,
    }
