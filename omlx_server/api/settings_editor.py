"""What the admin routes need to show and change the settings; process/ brings the object."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, Protocol

from typing_extensions import TypedDict


class ListedSetting(TypedDict):
    """One setting: its `value` in force and its `default`. `origin` says where the value is from:
    flag, env NAME, file PATH, fallback (of `omlx-server up`) or default. `live`: a change applies
    while the server runs. `needs_restart`: the config has another value, which a restart brings
    into force. `by_hand`: only `omlx-server config set` changes it. `least` and `most` bound
    numbers, `choices` are all that is allowed. `help`: what it takes, in words."""

    key: str
    value: Any
    default: Any
    origin: str
    live: bool
    needs_restart: bool
    by_hand: bool
    type: Literal["bool", "int", "float", "choice", "text", "list", "table"]
    choices: NotRequired[list[str | int]]
    least: NotRequired[float]
    most: NotRequired[float]
    help: str


class SettingsListed(TypedDict):
    """All settings but secrets. `file`: the config file in use, null where there is none."""

    file: str | None
    settings: list[ListedSetting]


class SettingsChanged(TypedDict):
    """The changed keys: those that are in force now, and those that a restart brings into force."""

    applied: list[str]
    needs_restart: list[str]


class SettingsEditor(Protocol):
    """Shows the settings of a running server, and changes its config file."""

    async def listed(self) -> SettingsListed:
        """All settings in force. Raises Conflict while the config file can't be read."""

    async def change(self, values: Mapping[str, Any]) -> SettingsChanged:
        """Write new values of keys, as JSON has them, to the config file, and apply what can be
        applied. Either all are written or none.

        Raises:
            BadRequest: there is no such key, or it does not allow this value; `param` names it.
            Conflict: a flag or the environment sets it, the file can't be written, or the server
                can't use the value now.
        """

    async def reload(self) -> SettingsChanged:
        """Read the config file again, and apply what has changed in it and can be applied. Raises
        Conflict where the server can't use the file now."""
