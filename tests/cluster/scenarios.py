"""What a group of ranks computes in tests, and one process alone: the same requests, by name."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from omlx_server.compute.cluster.ranks import Ranks
from omlx_server.compute.cluster.splitting import split
from omlx_server.compute.kv import dispatch
from omlx_server.compute.model.loader import LoadedModel, read_dims, weight_bytes
from omlx_server.compute.quantise import make_scheme, use_rows_of_own_length, use_scheme
from omlx_server.compute.row_ends import verifies_drafts
from omlx_server.engine.cluster.others import Others
from tests.compute.all_kinds import run
from tests.compute.drive import LIMITS
from tests.tiny_models import make_model

Answers = dict[str, list[int]]


@dataclass(frozen=True)
class Scenario:
    """Random requests to a tiny model of an architecture, whose configuration has `changes`.
    `kv`: the name, bits and group size of its KV scheme."""

    architecture: str
    seed: int = 0
    drafts: bool = False
    kv: Sequence[Any] = ()
    changes: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def load(scenario: Scenario, ranks: Ranks | None = None) -> LoadedModel:
    dispatch.install()
    model, config = make_model(scenario.architecture, **scenario.changes)
    if ranks is not None:
        split(model, ranks)
    scheme = make_scheme(*scenario.kv) if scenario.kv else None
    if scheme is not None:
        use_scheme(model, scheme)
    else:
        use_rows_of_own_length(model)
    dims, nbytes = read_dims(model, config), weight_bytes(model)
    name, verifies = f"tiny-{scenario.architecture}", verifies_drafts(model)
    return LoadedModel(model, dims, name, nbytes, verifies, ranks=ranks)


def answers(scenario: Scenario, loaded: LoadedModel, others: Others | None = None) -> Answers:
    limits = replace(LIMITS, speculation="auto" if scenario.drafts else "off")
    drive = run(loaded, scenario.seed, limits, others=others)
    return {name: got for name, got in drive.answers.items() if name.startswith("r")}
