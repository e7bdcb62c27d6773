"""Reloads the config of a running server. A wrong config changes nothing. asyncio thread."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence

from omlx_server.api.context import ConfigState
from omlx_server.api.own.degraded import in_one_line
from omlx_server.errors import ConfigError, OmlxError, UsageError
from omlx_server.process.config_file import POLL_SECONDS, ConfigFile, Hangup
from omlx_server.settings import Loaded, Settings
from omlx_server.settings.changes import Changes, SettingChange, changes

_log = logging.getLogger(__name__)

Applier = Callable[[Changes], Awaitable[None]]
"""Applies its part of changed settings. One that raises OmlxError changes nothing, and comes
first."""


class NotYet(ConfigError):
    """The settings apply once requests have ended; `watch` tries again."""


class Reloader:
    """Loads settings again and applies them. `check` raises ConfigError; `tell` gets the state
    after each reload."""

    def __init__(
        self,
        loaded: Loaded,
        check: Callable[[Settings], None],
        appliers: Sequence[Applier],
        tell: Callable[[ConfigState], None],
    ) -> None:
        self.settings: Settings = loaded.settings
        self._source = loaded.source
        self._load_again = loaded.load_again
        self._check = check
        self._appliers = appliers
        self._tell = tell
        self.problem = ""
        self._awaiting_restart: tuple[SettingChange, ...] = ()
        self._reloading = asyncio.Lock()
        self.tries_again = False

    @property
    def needs_restart(self) -> tuple[str, ...]:
        """Keys whose new values need a restart."""
        return tuple(change.key for change in self._awaiting_restart)

    async def reload(self, *, quiet: bool = False) -> Changes | None:
        """Load and apply the config. Return the changes; None for a wrong one, which is logged."""
        async with self._reloading:
            try:
                changed = await self._load_changes()
                for apply in self._appliers:
                    await apply(changed)
            except OmlxError as error:
                self._refuse(error)
                return None
            self._accept(changed, quiet=quiet)
            return changed

    async def _load_changes(self) -> Changes:
        new = await asyncio.to_thread(self._load_again)
        if self._source and new.source != self._source and not os.path.lexists(self._source):
            raise ConfigError(f"config file {self._source} is gone")
        self._check(new.settings)
        changed = changes(self.settings, new)
        self._source = new.source
        return changed

    def _refuse(self, error: OmlxError) -> None:
        self.tries_again = isinstance(error, NotYet)
        problem = in_one_line(error) if isinstance(error, UsageError) else error.message
        if problem != self.problem:
            self.problem = problem
            _log.error("the settings stay as they were: %s", problem)
        self._tell(ConfigState(problem))

    def _accept(self, changed: Changes, *, quiet: bool) -> None:
        earlier, self._awaiting_restart = self._awaiting_restart, changed.needs_restart
        is_known = self._awaiting_restart == earlier
        is_new = bool(changed.applied or self.problem or not is_known)
        self.settings, self.problem, self.tries_again = changed.in_force, "", False
        self._tell(ConfigState("", self.needs_restart))
        if is_new or not quiet:
            level = logging.WARNING if self._awaiting_restart and not is_known else logging.INFO
            _log.log(level, "settings: %s", changed)


async def watch(reloader: Reloader, file: ConfigFile, end: Callable[[], None]) -> None:
    """Reload on changes and SIGHUP, until cancelled. Call `end` when the terminal is gone."""
    hangup = Hangup()
    await reloader.reload(quiet=True)  # it may have changed since the start
    while True:
        if await hangup.comes_within(POLL_SECONDS):
            if hangup.terminal_is_gone:
                end()
                continue
            file.remember()
            await reloader.reload()
        elif file.has_changed() or reloader.tries_again:
            await reloader.reload(quiet=True)  # editors write twice
