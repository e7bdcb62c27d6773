"""Describes a model on this machine as GET /v1/models would."""

from typing import Any

from omlx_server.cli.models.images import images_of
from omlx_server.cli.models.named import with_adapter
from omlx_server.core.model_files.kind import ModelKind
from omlx_server.errors import UsageError
from omlx_server.settings import Settings
from omlx_server.settings.overrides import context_of


def listing_on_disk(name: str, settings: Settings) -> dict[str, Any] | None:
    try:
        model, _ = with_adapter(settings.models.resolve_alias(name), settings)
    except UsageError:
        return None
    takes = ["text", "image"] if images_of(model, settings)["images"] else ["text"]
    gives = ["text"] if model.kind is ModelKind.CHAT else [model.kind.value]
    listing: dict[str, Any] = {
        "architecture": {"input_modalities": takes, "output_modalities": gives}
    }
    if model.context_length:
        overrides = settings.overrides_of(model.names)
        listing["max_model_len"] = context_of(overrides, model.context_length)
    return listing
