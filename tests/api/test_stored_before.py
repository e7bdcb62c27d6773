"""What an earlier version has stored is read by this one: the cold tier, and archives."""

import shutil
from pathlib import Path

import pytest

from tests.api.harness import UNPROBED, cached, serving, text_of
from tests.data.stored import HERE, PROMPT, SETTINGS

TAR = {"content-type": "application/x-tar"}


@pytest.mark.parametrize("name", SETTINGS)
def test_cold_tiers_and_archives_of_before_are_read(name: str, tmp_path: Path) -> None:
    settings = (f"models.dirs={HERE / name / 'models'}", UNPROBED, *SETTINGS[name])
    shutil.copytree(HERE / name / "kv", tmp_path / "kv")
    with serving("org/tiny", tmp_path, *settings) as server:
        warm = server.chat(PROMPT, max_tokens=12)
        assert cached(warm) == warm["usage"]["prompt_tokens"] - 1
        cold = server.chat(PROMPT, max_tokens=12, cache_salt="imported")
        assert cached(cold) == 0
        assert text_of(warm) == text_of(cold)
        server.http.post(f"{server.url}/v1/cache/reset").raise_for_status()
        assert cached(server.chat(PROMPT, max_tokens=1, cache_salt="reset")) == 0
        archive = (HERE / name / "archive.tar").read_bytes()
        taken = server.http.post(f"{server.url}/v1/cache/import", content=archive, headers=TAR)
        assert taken.status_code == 200, taken.text
        again = server.chat(PROMPT, max_tokens=12)
        assert cached(again) == cached(warm)
        assert text_of(again) == text_of(cold)
