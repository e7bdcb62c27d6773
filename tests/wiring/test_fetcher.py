"""What a server removes for its owner, and what stays."""

import asyncio
from pathlib import Path

import pytest

from omlx_server.errors import Conflict, ModelNotFound, ModelUnavailable
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.encoders import FoundEncoders
from omlx_server.wiring.fetcher import DiskFetcher
from omlx_server.wiring.known import KnownModels
from tests.models.directories import make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the settings is a link to the one of the models."""
    make(tmp_path / "disk" / "acme" / "m")
    make(tmp_path / "disk" / "plain")
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    return tmp_path


def known_models(root: Path, first: Path, embedder: Path | None = None) -> KnownModels:
    models = {"dirs": [str(root / "models")], "use_hf_cache": False}
    embeds = Located(embedder, (embedder.name,)) if embedder else None
    return KnownModels(
        Settings.of({"models": models}), Located(first, (first.name,)), FoundEncoders(embeds)
    )


def test_what_the_server_was_started_with_stays_by_all_its_names(root: Path) -> None:
    started = root / "disk" / "acme" / "m"
    for known in (known_models(root, started), known_models(root, root, started)):
        with pytest.raises(Conflict, match="started with"):
            DiskFetcher(known).remove("acme/m", [])
        assert (started / "config.json").is_file()


def test_what_is_in_use_stays_and_the_rest_goes(root: Path) -> None:
    fetcher = DiskFetcher(known_models(root, root))
    with pytest.raises(Conflict, match="unload it first"):
        fetcher.remove("plain", [root / "disk" / "plain"])
    fetcher.remove("plain", [root / "disk" / "acme" / "m"])
    assert [path.name for path in (root / "disk").iterdir()] == ["acme"]
    with pytest.raises(ModelUnavailable, match="no model 'plain' here"):
        fetcher.remove("plain", [])


def test_who_waits_for_a_model_that_was_removed_is_told_so(root: Path) -> None:
    known = known_models(root, root)
    asyncio.run(known.refresh())
    (listing,) = (one for one in known.known() if one.names[0] == "plain")
    DiskFetcher(known).remove("plain", [])
    asyncio.run(known.refresh(anew=True))
    with pytest.raises(ModelNotFound, match="was removed"):
        known.source(listing.load_request.key)
