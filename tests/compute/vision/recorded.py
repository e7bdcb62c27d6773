"""What the reference has computed with the tiny models, and these models here."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omlx_server.compute.vision.families import FAMILIES, TowerFamily
from omlx_server.compute.vision.towers.features import Features
from omlx_server.compute.vision.weights import loading_tower
from omlx_server.core.work import finish
from tests.compute.vision.tiny import CONFIGS, GRIDS, weight

DATA = Path(__file__).parents[2] / "data" / "vision"
CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a recorded prompt, and its features in the reference."""

    pixels: mx.array
    grid: tuple[int, int, int]
    embeddings: NDArray[np.float32]
    deepstack: NDArray[np.float32] | None
    seen: NDArray[np.bool_] | None


def arrays(name: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{name}.npz") as found:
        return dict(found)


def images(name: str, number: int) -> list[Image]:
    """Those of recorded prompt `number` of a model."""
    found = arrays(name)
    return [
        Image(
            mx.array(found[f"pixels_{number}_{j}"]),
            _grid(name, found[f"pixels_{number}_{j}"], size),
            found[f"embeddings_{number}_{j}"],
            found.get(f"deepstack_{number}_{j}"),
            _seen(found.get(f"seen_{number}_{j}")),
        )
        for j, size in enumerate(GRIDS[number])
    ]


def features(tower: Any, image: Image) -> Features:
    """What a tower of ours makes of it."""
    seen = () if image.seen is None else (image.seen,)
    found: Features = finish(tower.computing(image.pixels, image.grid, *seen))
    return found


def _seen(pixels: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Of a mask of pixels that of patches."""
    return None if pixels is None else pixels[:, ::4, ::4]


def _grid(name: str, pixels: NDArray[Any], size: tuple[int, int]) -> tuple[int, int, int]:
    """Of a tower with square images the size of these, in patches."""
    side = CONFIGS[name]["vision_config"].get("image_size", 0) // 4
    return (len(pixels), side, side) if side else (1, *size)


def tensors(name: str) -> dict[str, mx.array]:
    """The tensors of a model's checkpoint. Published ones have the kernels of experts the other way
    round than transformers saves them today."""
    shapes = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    found = {key: mx.array(weight(key, shape)) for key, shape in shapes.items()}
    return {
        key: mx.contiguous(array.swapaxes(1, 2)) if ".experts." in key else array
        for key, array in found.items()
    }


def save(name: str, folder: Path, weights: dict[str, mx.array] | None = None) -> Path:
    """A directory as people have it, with these weights or the model's own."""
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]), "utf-8")
    (folder / "preprocessor_config.json").write_text("{}", "utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), weights or tensors(name))
    return folder


def load_tower(name: str, folder: Path) -> Any:
    return finish(loading_tower(family(name), CONFIGS[name], folder))


def family(name: str) -> TowerFamily:
    return FAMILIES[CONFIGS[name]["model_type"]]


def differences(found: Features, image: Image) -> Iterator[float]:
    """The largest difference of each array from the reference."""
    yield apart(found.embeddings, image.embeddings)
    assert (found.deepstack is None) == (image.deepstack is None)
    if found.deepstack is not None and image.deepstack is not None:
        yield apart(found.deepstack, image.deepstack)


def apart(found: mx.array, expected: NDArray[np.float32]) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.abs(np.array(found.astype(mx.float32)) - expected).max())
