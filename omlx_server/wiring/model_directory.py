"""Finds the directory of a model, which may be made or downloaded."""

from pathlib import Path

from omlx_server.compute.hardware import device
from omlx_server.models import catalogue
from omlx_server.models.bundled import starter
from omlx_server.models.catalogue import CatalogueRow
from omlx_server.models.locate import Located, bundled_directory, find_here, locate
from omlx_server.models.progress import ProgressListener
from omlx_server.settings import Settings


def find_model(name: str, settings: Settings, progress: ProgressListener) -> Located:
    """Return the model that `name` means, made (catalogue) or downloaded if missing."""
    row = catalogue.find(name)
    if row is None:
        return locate(name, settings.models, progress)
    finish = None if device.is_cpu() else device.quantize_in_place
    models_dir = _directory_of(row, settings).parent
    path = starter.ensure(row, models_dir, variant=_variant(), finish=finish, progress=progress)
    return Located(path, (row.name, row.full_name))


def find_model_here(name: str, settings: Settings) -> Located | None:
    """Return the model without making or downloading it; None if missing."""
    row = catalogue.find(name)
    if row is None:
        return find_here(name, settings.models)
    path = _directory_of(row, settings)
    return Located(path, (row.name, row.full_name)) if starter.is_complete(path) else None


def _directory_of(row: CatalogueRow, settings: Settings) -> Path:
    return bundled_directory(row.directory_name(_variant()), starter.is_complete, settings.models)


def _variant() -> str:
    """Return the form of catalogue models that is fastest on this device."""
    return "f32" if device.is_cpu() else "8bit"
