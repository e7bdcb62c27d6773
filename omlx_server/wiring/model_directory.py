"""Finds the directory of a model, which may be made or downloaded for that."""

from omlx_server.compute.hardware import device
from omlx_server.models import catalogue
from omlx_server.models.bundled import starter
from omlx_server.models.locate import Located, locate
from omlx_server.models.progress import Progress
from omlx_server.settings import Settings


def find_model(name: str, settings: Settings, progress: Progress) -> Located:
    """The directory of the model that `name` means: a model of the catalogue (made on the disk if
    it is not there yet), a local directory or a Hugging Face id."""
    row = catalogue.find(name)
    if row is None:
        return locate(name, settings.models)
    directory = settings.models.dirs[0]
    variant, finish = ("f32", None) if device.is_cpu() else ("8bit", device.quantize_in_place)
    path = starter.ensure(row, directory, variant=variant, finish=finish, progress=progress)
    return Located(path, (row.name, row.full_name))
