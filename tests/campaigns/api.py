"""Schemathesis over all routes, with other requests in each round, for as long as wanted."""

import time
from collections.abc import Callable
from pathlib import Path

from omlx_server.models.bundled.embedded import ensure
from omlx_server.models.catalogue import MINILM
from omlx_server.settings import Settings
from tests.api.description import fuzz
from tests.api.description.fuzz import Outcome
from tests.api.description.judge import closed
from tests.api.description.narrow import narrowed
from tests.api.description.server import CHAT, KEY, RANKING, save_chat, settings_of
from tests.api.encoders import models
from tests.api.harness import ServerProcess, serving

_EXAMPLES = 50
# The bounds of the fields are the same in each round.
_FIRST = ("coverage", "fuzzing", "stateful")
_LATER = ("fuzzing", "stateful")


def campaign(
    directory: Path,
    minutes: float,
    *,
    seed: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """One outcome for each round; at least one."""
    ranker = models.save_ranker(directory / "readers" / RANKING)
    embedder = ensure(MINILM, Settings().models.dirs[0])
    chat = save_chat(directory / "models")
    settings = settings_of(chat, embedder.parent, ranker.parent)
    outcomes: list[Outcome] = []
    end = time.monotonic() + minutes * 60
    with serving(CHAT, directory / "server", *settings) as server:
        while not outcomes or time.monotonic() < end:
            phases = _LATER if outcomes else _FIRST
            outcomes.append(_round(server, phases, seed + len(outcomes)))
            say(f"round {len(outcomes)}: {outcomes[-1]}")
    return outcomes


def _round(server: ServerProcess, phases: tuple[str, ...], seed: int) -> Outcome:
    key = {"x-api-key": KEY}
    document = server.http.get(f"{server.url}/openapi.json", headers=key).json()
    return fuzz.run(
        narrowed(closed(document)),
        server.url,
        KEY,
        phases=phases,
        examples=_EXAMPLES,
        seed=seed,
        deterministic=False,
    )
