"""The editor of a running server's settings, which process/ implements."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, Protocol

from typing_extensions import TypedDict


class ListedSetting(TypedDict):
    """A setting with its `value` in force. `origin` is the value's source: flag, env NAME, file
    PATH, fallback (of `omlx-server up`) or default. `text` and `default_text`: a number with its
    unit. `live`: a change applies at once. `needs_restart`: the config has another value.
    `by_hand`: only `omlx-server config set` changes it."""

    key: str
    value: Any
    default: Any
    text: str
    default_text: str
    origin: str
    live: bool
    needs_restart: bool
    by_hand: bool
    type: Literal["bool", "int", "float", "choice", "text", "list", "table"]
    choices: NotRequired[list[str | int]]
    least: NotRequired[float]
    most: NotRequired[float]
    takes: str
    help: str
    search_words: str


class SettingsListed(TypedDict):
    """All settings but secrets. `file`: the config file in use, null where there is none."""

    file: str | None
    can_restart: bool
    settings: list[ListedSetting]


class SettingsChanged(TypedDict):
    """The changed keys: those in force now, and those that wait for a restart."""

    applied: list[str]
    needs_restart: list[str]


class SettingsEditor(Protocol):
    async def listed(self) -> SettingsListed:
        """Return all settings. Raises Conflict while the config file can't be read."""

    async def change(self, values: Mapping[str, Any]) -> SettingsChanged:
        """Write new values to the config file, all or none, and apply them; None removes a key.
        Raises BadRequest for a key (`param`) or value, Conflict if they can't be used."""

    async def reload(self) -> SettingsChanged:
        """Read the config file again and apply it. Raises Conflict where it can't be used."""

    def restart(self) -> SettingsChanged:
        """End, to be started again. Raises Conflict if no service manager would do that."""
