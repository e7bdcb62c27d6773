"""When a config file counts as changed, and what a reload makes of it. Real files, no server."""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx_server.api.context import ConfigState
from omlx_server.errors import ConfigError, Unavailable
from omlx_server.process import reload
from omlx_server.process.config_file import ConfigFile, Hangup
from omlx_server.process.reload import NotYet, Reloader, watch
from omlx_server.settings import Settings, load
from omlx_server.settings.changes import Changes


def looks(file: ConfigFile, count: int = 3) -> list[bool]:
    return [file.has_changed() for _ in range(count)]


def test_a_change_counts_once_and_not_before_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("")
    file = ConfigFile(lambda: path)
    assert looks(file) == [False] * 3
    seen = []
    for text in ("[ca", "[cache]\nena", "[cache]\nenabled = true\n"):
        path.write_text(text)
        seen.append(file.has_changed())
    assert seen == [False] * 3, "it was read while it was written"
    assert looks(file) == [True, False, False]


def test_one_that_comes_goes_or_takes_the_place_of_another(tmp_path: Path) -> None:
    path, other = tmp_path / "c.toml", tmp_path / "other"
    file = ConfigFile(lambda: path)
    path.write_text("a")
    assert looks(file) == [False, True, False]
    was = path.stat()
    other.write_text("b")
    os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
    other.replace(path)
    assert looks(file) == [False, True, False], "the same size and date, another file"
    path.unlink()
    assert looks(file) == [False, True, False]


def test_an_editor_that_removes_first_goes_unnoticed_until_it_has_written(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("old")
    file = ConfigFile(lambda: path)
    path.unlink()
    seen = [file.has_changed()]
    path.write_text("newer")
    assert [*seen, *looks(file)] == [False, False, True, False]


def test_a_stronger_place_counts(tmp_path: Path) -> None:
    places = [tmp_path / "strong.toml", tmp_path / "weak.toml"]
    places[1].write_text("x")
    file = ConfigFile(lambda: next((p for p in places if p.exists()), None))
    places[0].write_text("x")
    assert looks(file) == [False, True, False]


class Place:
    """A config file, and a server of which only the appliers are there."""

    def __init__(self, path: Path, text: str = "") -> None:
        self.path = path
        path.write_text(text)
        self.applied: list[str] = []
        self.states: list[ConfigState] = []
        self.stops: list[Exception] = []
        loaded = load(path, {"logging.level": "debug"}, {})
        self.reloader = Reloader(loaded, self.check, (self.refuse, self.apply), self.states.append)

    def check(self, settings: Settings) -> None:
        if settings.models.overrides:
            raise ConfigError("there is no such parser")

    async def refuse(self, changed: Changes) -> None:
        if self.stops and changed:
            raise self.stops.pop()

    async def apply(self, changed: Changes) -> None:
        self.applied.append(str(changed))

    def reload(self, text: str | None = None, *, quiet: bool = False) -> None:
        if text is not None:
            self.path.write_text(text)
        asyncio.run(self.reloader.reload(quiet=quiet))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [(record.levelname, record.message) for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture
def place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Place:
    caplog.set_level(logging.INFO)
    return Place(tmp_path / "c.toml")


def test_one_line_says_all(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.reload("[scheduler]\nmax_queue = 5\n[logging]\nlevel = 'error'\n")
    told = "scheduler.max_queue 128 -> 5"
    assert lines(caplog) == [("INFO", f"settings: {told}")], "the flag is stronger"
    assert place.applied == [told]
    assert place.reloader.settings.logging.level == "debug"
    place.reload("[scheduler]\nmax_queue = 5\n[server]\nport = 9\n")
    waiting = "nothing has changed; needs a restart: server.port 8000 -> 9"
    assert lines(caplog) == [("WARNING", f"settings: {waiting}")]
    assert place.states[-1] == ConfigState("", ("server.port",))


def test_what_waits_for_a_restart_is_one_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """However often the file is written; who asks is told once more, and warned of no news."""
    port = "[server]\nport = 9\n"
    place.reload(port, quiet=True)
    place.reload(port, quiet=True)
    place.reload(f"# a word\n{port}", quiet=True)
    waiting = "settings: nothing has changed; needs a restart: server.port 8000 -> 9"
    assert lines(caplog) == [("WARNING", waiting)]
    place.reload()
    assert lines(caplog) == [("INFO", waiting)]
    place.reload("[server]\nport = 90\n", quiet=True)
    assert lines(caplog) == [("WARNING", f"{waiting}0")]
    place.reload("", quiet=True)
    place.reload("", quiet=True)
    assert lines(caplog) == [("INFO", "settings: nothing has changed")]
    assert place.states[-1] == ConfigState()


def test_what_is_wrong_changes_nothing_and_is_told_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.reload("[scheduler]\nmax_queue = 5\n")
    lines(caplog)
    for _ in range(2):
        place.reload("[scheduler]\nmax_queue = 'many'\nmax_batch_size = 3\n")
    [(level, message)] = lines(caplog)
    assert level == "ERROR"
    assert message.startswith("the settings stay as they were: scheduler.max_queue: expected")
    assert "scheduler.max_queue: expected" in place.states[-1].problem
    assert len(place.applied) == 1 and place.reloader.settings.scheduler.max_queue == 5
    place.reload("[models.overrides.a]\ntool_parser = 'x'\n")
    assert place.states[-1].problem == "there is no such parser" and lines(caplog)
    place.reload("[scheduler]\nmax_queue = 5\n")
    assert lines(caplog) == [("INFO", "settings: nothing has changed")]
    assert place.states[-1] == ConfigState()


Spoils = Callable[[Path], object]


def emptied(path: Path) -> None:
    path.write_text("")


def cut(path: Path) -> None:
    path.write_text("[scheduler]\nmax_queue = 5\n")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_dead_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (emptied, "auth.api_keys is not in the config any more"),
        (cut, "auth.api_keys is not in the config any more"),
        (Path.unlink, "config.toml is gone|config.toml not found"),
        (a_directory, "config.toml can't be read"),
        (a_pipe, "config.toml can't be read"),
        (a_dead_link, "config.toml can't be read"),
        (a_loop, "config.toml can't be read"),
    ],
)
def test_a_file_that_lost_its_keys_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoils, told: str, *, is_named: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    path, states = tmp_path / ".config/omlx_server/config.toml", list[ConfigState]()
    path.parent.mkdir(parents=True)
    path.write_text("[auth]\napi_keys = ['k']\n")
    loaded = load(path if is_named else None, {}, {})
    reloader = Reloader(loaded, lambda settings: None, (), states.append)
    spoil(path)
    asyncio.run(reloader.reload())
    assert re.search(told, states[-1].problem) and reloader.settings.auth.api_keys


def test_what_can_not_be_applied_yet_is_tried_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.stops = [NotYet("too early"), NotYet("too early")]
    place.reload("[scheduler]\nmax_queue = 5\n")
    assert place.reloader.tries_again and not place.applied
    place.reload()
    assert place.states[-1].problem == "too early"
    place.reload()
    assert place.applied == ["scheduler.max_queue 128 -> 5"]
    assert [level for level, _ in lines(caplog)] == ["ERROR", "INFO"]
    place.stops = [Unavailable("the engine has failed")]
    place.reload("[scheduler]\nmax_queue = 6\n")
    assert not place.reloader.tries_again


def test_it_is_watched(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change from before the watch, the signal, and changes of the file, one of which is none."""
    monkeypatch.setattr(reload, "POLL_SECONDS", 0.02)
    seen = []

    async def run() -> None:
        before = signal.getsignal(signal.SIGHUP)
        place.path.write_text("[scheduler]\nmax_queue = 1\n")
        watching = asyncio.create_task(
            watch(place.reloader, ConfigFile(lambda: place.path), lambda: None)
        )
        await until(1)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(2)
        place.path.write_text("[scheduler]\nmax_queue = 22\n")
        await until(3)
        place.path.write_text("[scheduler]\nmax_queue = 22\n# so many\n")
        await asyncio.sleep(0.2)
        seen.extend(lines(caplog))
        watching.cancel()
        signal.signal(signal.SIGHUP, before)

    async def until(count: int) -> None:
        for _ in range(6000):
            seen.extend(lines(caplog))
            if len(seen) >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(seen)

    asyncio.run(run())
    assert [message.partition(": ")[2] for _, message in seen] == [
        "scheduler.max_queue 128 -> 1",
        "nothing has changed",
        "scheduler.max_queue 1 -> 22",
    ]


def test_only_a_terminal_that_was_there_can_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell sends when it ends means the end; under nohup, and without one, it does not."""

    async def gone(at_start: bool, later: bool, ignored: bool = False) -> bool:
        monkeypatch.setattr("omlx_server.process.config_file._has_terminal", lambda: at_start)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        hangup = Hangup()
        signal.signal(signal.SIGHUP, before)
        monkeypatch.setattr("omlx_server.process.config_file._has_terminal", lambda: later)
        return hangup.terminal_is_gone

    found = [
        asyncio.run(gone(*case))
        for case in ((True, False), (True, True), (False, False), (True, False, True))
    ]
    assert found == [True, False, False, False]
