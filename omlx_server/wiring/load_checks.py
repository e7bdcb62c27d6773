"""Checks whether a model can be loaded, by its files but the weights. Any thread."""

from dataclasses import dataclass
from pathlib import Path

from omlx_server.compute.model.fingerprint import file_states
from omlx_server.core.crash import guarded
from omlx_server.core.device_errors import DeviceFault, fault_of
from omlx_server.errors import ClientError, ModelUnavailable, NotNow
from omlx_server.models import layout
from omlx_server.models.damage import damage_in
from omlx_server.settings import Settings
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """A failed load, which counts until files or settings change."""

    message: str
    states: object
    settings: Settings

    def holds(self, states: object, settings: Settings) -> bool:
        return self.states == states and self.settings is settings


def states_of(path: Path) -> object:
    return guarded(file_states, path)


def is_lasting(error: BaseException) -> bool:
    """Return whether the load would fail again: not for want of memory or for another failure of
    the device, or by a disk, an adapter or a changed file."""
    fault = fault_of(error)  # a kernel that can't be compiled is unknown
    is_passing = fault is not None and fault is not DeviceFault.UNKNOWN
    if isinstance(error, NotNow | ClientError | OSError) or is_passing:
        return False
    return error.__cause__ is None or is_lasting(error.__cause__)


def check_files(path: Path) -> None:
    """Raise ModelUnavailable if a file is missing or damaged."""
    layout.check(path)
    if damage := damage_in(path):
        raise ModelUnavailable(damage)


def check_text(path: Path, template: str | None) -> Tokenizer:
    tokenizer = Tokenizer.load(path, template=template)
    ChatTemplate(tokenizer)
    return tokenizer


def check_encoder_text(path: Path) -> None:
    InputEncoder.load(path)
