"""Tells by the files of a model whether it can be loaded, without its weights: their headers, the
config, the tokenizer and the chat template are read. Any thread.

What only a load has shown is kept in a `FailedLoad`, which counts until the files or the settings
change.
"""

from dataclasses import dataclass
from pathlib import Path

from omlx_server.compute.hardware.device import is_out_of_memory
from omlx_server.compute.model.fingerprint import file_states
from omlx_server.core.crash import guarded
from omlx_server.errors import ClientError, ModelUnavailable, NotNow
from omlx_server.models import layout
from omlx_server.models.damage import damage_in
from omlx_server.settings import Settings
from omlx_server.text.ranking.pairs import InputEncoder
from omlx_server.text.templates.template import ChatTemplate
from omlx_server.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """Why a model could not be loaded from files in these `states`, by their names, and under these
    `settings`."""

    message: str
    states: object
    settings: Settings

    def holds(self, states: object, settings: Settings) -> bool:
        return self.states == states and self.settings is settings


def states_of(path: Path) -> object:
    """What changes when a file of the model in this directory does."""
    return guarded(file_states, path)


def is_lasting(error: BaseException) -> bool:
    """Whether the same load would fail again, by the error and what has caused it: not for want of
    memory, nor by a disk, an adapter or a file that has changed."""
    if isinstance(error, NotNow | ClientError | OSError) or is_out_of_memory(error):
        return False
    return error.__cause__ is None or is_lasting(error.__cause__)


def check_files(path: Path) -> None:
    """Raises ModelUnavailable if a file is missing or damaged."""
    layout.check(path)
    if damage := damage_in(path):
        raise ModelUnavailable(damage)


def check_text(path: Path, template: str | None) -> Tokenizer:
    """The tokenizer of a chat model with that chat template, or its own. Raises ModelUnavailable if
    one of them can't be used."""
    tokenizer = Tokenizer.load(path, template=template)
    ChatTemplate(tokenizer)
    return tokenizer


def check_encoder_text(path: Path) -> None:
    """Raises ModelUnavailable if the tokenizer of an encoder can't be used."""
    InputEncoder.load(path)
