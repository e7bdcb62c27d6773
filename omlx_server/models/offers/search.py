"""Searches the hub for models in MLX's format. Blocking; any thread."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from omlx_server.core.model_files.kind import ModelKind, kind_of
from omlx_server.core.model_files.parser_signs import NO_REASONING, reasoning_parser_of
from omlx_server.errors import FetchFailed, one_line
from omlx_server.models.hub import hub
from omlx_server.models.hub.remote import unfit_for_serving

_TAG = "mlx"
_ASKED = ["config", "downloads", "gated", "pipeline_tag", "safetensors"]
_WITH_IMAGES = "image-text-to-text"
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
    chats: bool = True
    abilities: tuple[str, ...] = ()


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
    config = model.get("config") or {}
    kind = kind_of(config, (), name)
    chats = kind is ModelKind.CHAT
    return HubModel(
        name,
        _nbytes((model.get("safetensors") or {}).get("parameters")),
        int(model.get("downloads") or 0),
        bool(model.get("gated")),
        unfit_for_serving(config, kind) if config else "",
        chats,
        tuple(_abilities(config, str(model.get("pipeline_tag")))) if chats else (),
    )


def _abilities(config: Mapping[str, Any], task: str) -> Iterator[str]:
    template = str((config.get("tokenizer_config") or {}).get("chat_template") or "")
    template += str(config.get("chat_template_jinja") or "")
    if "tools" in template:
        yield "tools"
    if reasoning_parser_of(template, ()) != NO_REASONING:
        yield "thinking"
    if task == _WITH_IMAGES:
        yield "images"


def _nbytes(parameters: Mapping[str, Any] | None) -> int | None:
    if not parameters or not all(kind in _BITS for kind in parameters):
        return None
    return sum(int(count) * _BITS[kind] for kind, count in parameters.items()) // 8
