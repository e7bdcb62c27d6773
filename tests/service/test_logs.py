"""The log as a file: rotated, its owner's alone; its end is found and followed across rotations."""

import logging
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

import pytest

from omlx_server.errors import UsageError
from omlx_server.process import logs
from omlx_server.service import tail
from omlx_server.service.tail import follow, last_lines


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_BYTES", 100)


@pytest.fixture
def log(tmp_path: Path, small: None) -> Iterator[logging.Logger]:
    """One that writes to server.log, of 100 bytes at most."""
    handler = logs.log_handler(str(tmp_path / "deep" / "server.log"))
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_a_file_is_rotated_and_five_of_the_old_are_kept(
    log: logging.Logger, tmp_path: Path
) -> None:
    for number in range(200):
        log.info("line %03d ", number)
    files = sorted((tmp_path / "deep").iterdir())
    assert [file.name for file in files] == [
        "server.log",
        *(f"server.log.{number}" for number in range(1, 6)),
    ]
    for file in files:
        assert file.stat().st_size <= 100
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "line 199" in files[0].read_text(encoding="utf-8")


def test_it_is_10_mb_by_itself(tmp_path: Path) -> None:
    handler = logs.log_handler(str(tmp_path / "x.log"))
    assert isinstance(handler, logging.handlers.RotatingFileHandler)
    assert (handler.maxBytes, handler.backupCount) == (10_000_000, 5)
    handler.close()


def test_without_a_file_it_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs.log_handler("")
    handler.emit(logging.makeLogRecord({"msg": "hi"}))
    assert capsys.readouterr().err == "hi\n"


def test_a_file_that_can_not_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"can't be written to .*/file/x.log: ") as caught:
        logs.log_handler(str(tmp_path / "file" / "x.log"))
    assert "logging.file" in caught.value.hint


def test_the_last_lines_reach_into_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("c\nd\n")
    assert last_lines(path, 5) == ["c", "d"]
    (tmp_path / "server.log.1").write_text("a\nb\n")
    assert last_lines(path, 3) == ["b", "c", "d"]
    assert last_lines(path, 1) == ["d"]
    assert last_lines(path, 0) == []


def test_the_last_lines_of_no_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        last_lines(tmp_path / "server.log", 3)


def test_following_misses_no_line_when_the_log_is_rotated(
    log: logging.Logger, tmp_path: Path
) -> None:
    log.info("before")
    numbers = iter(range(100))

    def write_more(_seconds: float) -> None:
        """Several lines at a time, so that a rotation comes between two looks."""
        for number in islice(numbers, 7):
            log.info("line %03d ", number)

    path = tmp_path / "deep" / "server.log"
    found = list(islice(follow(path, write_more), 98))
    assert found == [f"line {number:03d} " for number in range(98)]


def test_a_line_is_given_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    pieces = iter(["", "ha", "lf\nan", "other\n"])

    def write_more(_seconds: float) -> None:
        with path.open("a") as file:
            file.write(next(pieces))

    assert list(islice(follow(path, write_more), 2)) == ["half", "another"]


def test_what_is_written_just_before_a_rotation_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "server.log"
    path.touch()
    looks, look = iter(range(100)), tail._was_rotated

    def rotate_then_look(file: TextIO, where: Path) -> bool:
        """Between the reading of the old file and the look whether there is a new one."""
        if next(looks) == 0:
            path.write_text("late\n")
            path.rename(tmp_path / "server.log.1")
            path.write_text("new\n")
        return look(file, where)

    monkeypatch.setattr(tail, "_was_rotated", rotate_then_look)
    assert list(islice(follow(path, lambda _seconds: None), 2)) == ["late", "new"]
