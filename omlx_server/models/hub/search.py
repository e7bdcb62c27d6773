"""Searches the hub for models in MLX's format. Blocking; any thread."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from omlx_server.core.model_files.kind import kind_of
from omlx_server.errors import FetchFailed, one_line
from omlx_server.models.hub import hub
from omlx_server.models.hub.remote import unfit_for_serving

_TAG = "mlx"
_ASKED = ["config", "downloads", "gated", "safetensors"]
# Bits of an element by its type in safetensors.
_BITS = {"BOOL": 8, "I8": 8, "U8": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
_BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}
_BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F4": 4}


@dataclass(frozen=True, slots=True)
class HubModel:
    """`downloads` of the last month; `problem` says why it can't be served."""

    name: str
    weight_bytes: int | None
    downloads: int
    is_gated: bool
    problem: str


def search(text: str, most: int) -> list[HubModel]:
    """Return the most downloaded models. Raises FetchFailed."""
    endpoint = hub.HUB.endpoint or constants.ENDPOINT
    query = {"search": text, "filter": _TAG, "sort": "downloads", "limit": most, "expand": _ASKED}
    try:
        # Not HfApi.list_models: it tries again for half a minute where there is no network.
        return [_found(model) for model in hub.ask(f"{endpoint}/api/models", query).json()]
    except (HfHubHTTPError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise FetchFailed(
            f"The hub can't search: {one_line(error)}", hint="Try again later."
        ) from error
    except (HTTPError, OSError) as error:
        raise FetchFailed(
            f"The hub can't be reached: {one_line(error)}",
            hint="Check the network; `omlx-server search` without a text needs none.",
        ) from error


def _found(model: Mapping[str, Any]) -> HubModel:
    name = str(model["id"])
    config = model.get("config")
    problem = ""
    if isinstance(config, dict) and config:
        problem = unfit_for_serving(config, kind_of(config, (), name))
    tensors = model.get("safetensors") or {}
    return HubModel(
        name,
        _nbytes(tensors.get("parameters")),
        int(model.get("downloads") or 0),
        bool(model.get("gated")),
        problem,
    )


def _nbytes(parameters: Mapping[str, Any] | None) -> int | None:
    if not parameters or not all(kind in _BITS for kind in parameters):
        return None
    return sum(int(count) * _BITS[kind] for kind, count in parameters.items()) // 8
