"""Tiny models of the recorded cases (tests/data/embed/tiny.json), as directories."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from omlx_server.core.encoded import TokenizedText
from tests.data.embed.seeded import Weights, make_weights

DATA = Path(__file__).parents[2] / "data" / "embed"


@cache
def cases() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads((DATA / "tiny.json").read_text())["cases"]
    return content


def weights_of(case: str) -> Weights:
    return make_weights(cases()[case]["shapes"])


def save(directory: Path, case: str, weights: Weights | None = None, **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = {**cases()[case]["config"], **changes}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights or weights_of(case), directory / "model.safetensors")
    return directory


def save_pooling(directory: Path, pooling: dict[str, Any], *steps: str) -> None:
    """sentence-transformers' files. `steps` follow the pooling."""
    kinds = ["Transformer", "Pooling", *steps]
    modules = [
        {
            "idx": i,
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def inputs_of(case: str) -> list[TokenizedText]:
    row = cases()[case]
    types = row["types"] or [[] for _ in row["inputs"]]
    return [TokenizedText(tuple(i), tuple(t)) for i, t in zip(row["inputs"], types, strict=True)]
