"""Tiny models with a tokenizer, opened for the self-test and checked."""

from pathlib import Path
from typing import Any

from omlx_server.doctor.finding import Finding
from omlx_server.doctor.selftest import run
from omlx_server.doctor.selftest.check import Check, SelftestPlan
from omlx_server.doctor.selftest.subject import find_subject, opened
from omlx_server.settings import Settings
from tests.text import makers
from tests.tiny_models import save_tiny

SHORT = SelftestPlan(
    base=300,
    hits=6,
    rows=4,
    row=60,
    answer=8,
    contexts=(0,),
    chunks=2,
    decoded=8,
    rounds=1,
    seconds=60.0,
)
SEED = 7


def save_model(path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A model directory that `serve` could load. It is wide enough for its forwards to take more
    memory than what the planner adds to each."""
    vocab = makers.FAMILIES["byte_level"]().get_vocab_size()
    sizes = {"vocab_size": vocab, "hidden_size": 256, "intermediate_size": 1024, **changes}
    save_tiny(makers.save(path, "byte_level"), architecture, **sizes)
    return path


def settings_for(home: Path, **sections: dict[str, Any]) -> Settings:
    """Settings with small blocks and chunks, and all directories below `home`."""
    cache = {"cold_dir": str(home / "kv"), "block_tokens": 16, **sections.pop("cache", {})}
    return Settings.of(
        {
            "models": {"dirs": [str(home / "models")], "use_hf_cache": False},
            "scheduler": {"prefill_chunk_tokens": 64},
            "cache": cache,
            **sections,
        }
    )


def checked(model: Path, settings: Settings, plan: SelftestPlan = SHORT) -> dict[str, Check]:
    """The checks of the whole self-test, by what they look at."""
    with opened(find_subject(str(model), settings), settings, SEED) as subject:
        found = run.checks(subject, plan, lambda name, done, total: None)
        return {check.finding.what: check for check in found}


def finding(model: Path, settings: Settings, what: str) -> Finding:
    return checked(model, settings)[what].finding
