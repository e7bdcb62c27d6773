"""What a group of ranks computes in tests, and one process alone: the same requests, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from omlx_server.compute.cluster.part import loading_part
from omlx_server.compute.cluster.ranks import ConnectedRanks
from omlx_server.compute.cluster.splitting import split_model
from omlx_server.compute.kv import dispatch
from omlx_server.compute.model.loader import (
    LoadedModel,
    read_dims,
    weight_bytes,
)
from omlx_server.compute.quantise import make_scheme, use_rows_of_own_length, use_scheme
from omlx_server.compute.row_ends import verifies_drafts
from omlx_server.core.ranks import ALONE
from omlx_server.core.work import finish
from tests.compute.all_kinds import BLOCK, run
from tests.compute.drive import LIMITS, Drive
from tests.tiny_models import make_model

Answers = dict[str, list[int]]
PROMPT = range(3, 40)


@dataclass(frozen=True)
class Scenario:
    """Random requests to a tiny model of an architecture, whose configuration has `changes`, or
    that is read from the directory `path`. With `tokens` there is but one request, for so many of
    them. `kv`: the name, bits and group size of its KV scheme."""

    architecture: str
    seed: int = 0
    tokens: int = 0
    path: str = ""
    drafts: bool = False
    kv: Sequence[Any] = ()
    changes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Reply:
    """What a group of ranks gave. `parts` has for each rank the bytes of its weights, and those
    that its arrays took once it had loaded them. `sent` and `received` count the bytes that have
    gone over the connections of rank 0 so far: of the "ring", and of its "links"."""

    answers: Answers
    parts: Sequence[Sequence[int]]
    sent: Mapping[str, int]
    received: Mapping[str, int]


def load(scenario: Scenario, ranks: ConnectedRanks | None = None) -> LoadedModel:
    if ranks is not None and scenario.path:
        return finish(loading_part(Path(scenario.path), ranks, "a tiny model"))
    dispatch.install()
    model, config = make_model(scenario.architecture, **scenario.changes)
    if ranks is not None:
        split_model(model, ranks)
    scheme = make_scheme(*scenario.kv) if scenario.kv else None
    if scheme is not None:
        use_scheme(model, scheme)
    else:
        use_rows_of_own_length(model)
    dims, nbytes = read_dims(model, config), weight_bytes(model)
    name, verifies = f"tiny-{scenario.architecture}", verifies_drafts(model)
    return LoadedModel(model, dims, name, nbytes, verifies, ranks=ranks or ALONE)


def answers(scenario: Scenario, loaded: LoadedModel) -> Answers:
    if scenario.tokens:
        drive = Drive(loaded, LIMITS, BLOCK)
        return {"r": drive.answer("r", PROMPT, scenario.tokens)}
    limits = replace(LIMITS, speculation="auto" if scenario.drafts else "off")
    told = run(loaded, scenario.seed, limits)
    return {name: got for name, got in told.answers.items() if name.startswith("r")}
