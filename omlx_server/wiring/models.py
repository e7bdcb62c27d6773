"""The directory of a model."""

from omlx_server.compute.hardware import device
from omlx_server.models import catalogue
from omlx_server.models.bundled import starter
from omlx_server.models.locate import Located, locate
from omlx_server.models.progress import Progress
from omlx_server.settings import Settings


def find_model(name: str, settings: Settings, progress: Progress) -> Located:
    """The directory of a model: a catalogue row, a local directory or a Hugging Face id."""
    row = catalogue.find(name)
    if row is None:
        return locate(name, settings.models.dirs, settings.models.use_hf_cache)
    directory = settings.models.dirs[0]
    if device.is_cpu():
        path = starter.ensure(row, directory, variant="f32", progress=progress)
    else:
        finish = device.quantize_in_place
        path = starter.ensure(row, directory, variant="8bit", finish=finish, progress=progress)
    return Located(path, (row.name, row.full_name))
