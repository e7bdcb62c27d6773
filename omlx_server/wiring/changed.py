"""A model's HTTP side under other settings than it was made with."""

from dataclasses import replace

from omlx_server.api.models.served import Served, ServedModel
from omlx_server.core.window import Overflow
from omlx_server.settings import Settings
from omlx_server.wiring.overrides import sampling_defaults


def changed_model(model: Served, settings: Settings) -> Served:
    """The same model for requests that come from now on."""
    if not isinstance(model, ServedModel):
        return model
    own, context = settings.overrides_of(model.names), settings.context
    return replace(
        model,
        overflow=Overflow(context.overflow, context.low_water),
        defaults=sampling_defaults(model.recommended, own, settings),
    )
