"""Fields of `preprocessor_config.json` and `config.json`. Wrong values raise LoadFailed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from omlx_server.errors import LoadFailed
from omlx_server.images.resize import Resample

_COLOURS = 3


def positive_int(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return a whole number of at least 1, which may be written as 14.0."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        raise wrong_field(name, value)
    return int(value)


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    return default if value is None else bool(value)


def mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_field(name, value)
    return value


def resample_filter(config: Mapping[str, Any], default: Resample) -> Resample:
    value = config.get("resample")
    try:
        return default if value is None else Resample(value)
    except ValueError:
        raise wrong_field("resample", value) from None


def check_resizes(config: Mapping[str, Any]) -> None:
    """Raise LoadFailed if images are to keep their size, which no tower takes."""
    if not flag(config, "do_resize", True):
        raise wrong_field("do_resize", config["do_resize"])


def colour_table(config: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Return [3, 256]: for each of red, green and blue the rescaled and normalised value of a
    byte, computed in the precision of transformers."""
    values = np.arange(256, dtype=np.float64)
    if flag(config, "do_rescale", True):
        values = values * _number(config, "rescale_factor", 1 / 255)
    table = np.tile(values.astype(np.float32), (_COLOURS, 1))
    if flag(config, "do_normalize", True):
        mean, deviation = (
            _values_per_colour(config, "image_mean"),
            _values_per_colour(config, "image_std"),
        )
        if not deviation.all():
            raise wrong_field("image_std", config["image_std"])
        table = (table - mean[:, None]) / deviation[:, None]
    return table


def apply_colours(
    table: npt.NDArray[np.float32],
    bitmaps: Sequence[npt.NDArray[np.uint8]],
    shape: tuple[int, ...],
) -> npt.NDArray[np.float32]:
    """Return [N, H, W, 3], the `shape`: the upper left corners of N bitmaps, their values mapped by
    the colour table."""
    array = np.empty(shape, dtype=np.float32)
    _, height, width, _ = shape
    for index, pixels in enumerate(bitmaps):
        for colour in range(_COLOURS):
            array[index, ..., colour] = table[colour][pixels[:height, :width, colour]]
    return array


def patch_size(model: Mapping[str, Any], default: int) -> int:
    return positive_int(mapping(model, "vision_config"), "patch_size", default)


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_field(name, value)
    return float(value)


def _values_per_colour(config: Mapping[str, Any], name: str) -> npt.NDArray[np.float32]:
    value = config.get(name)
    try:
        numbers = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise wrong_field(name, value) from None
    if numbers.shape not in ((), (_COLOURS,)) or not np.isfinite(numbers).all():
        raise wrong_field(name, value)
    return np.broadcast_to(numbers, (_COLOURS,))


def wrong_field(name: str, value: object) -> LoadFailed:
    return LoadFailed(f"the model's images can't be prepared with {name} {value!r:.100}")
