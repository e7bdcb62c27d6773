"""The formula for Homebrew and pyproject.toml agree. Without Ruby: its lines are read as text."""

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from typer.testing import CliRunner

from omlx_server import __version__
from omlx_server.cli.app import app
from omlx_server.settings.unknown_keys import check_key

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "homebrew"
FORMULA = (FOLDER / "omlx-server.rb").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def field(name: str) -> str:
    """The one line `name "text"`."""
    (found,) = re.findall(rf'(?m)^  {name} "([^"]*)"$', FORMULA)
    return str(found)


def block(name: str) -> str:
    """What stands between `name do`, or `def name`, and its end."""
    (found,) = re.findall(rf"(?ms)^  (?:def )?{name}(?: do)?\n(.*?)^  end$", FORMULA)
    return str(found)


def test_it_is_the_formula_of_this_project() -> None:
    name = PROJECT["name"]
    class_name = "".join(word.capitalize() for word in name.split("-"))
    assert f"\nclass {class_name} < Formula\n" in FORMULA
    assert (FOLDER / f"{name}.rb").is_file()
    assert field("license") == PROJECT["license"]
    assert field("homepage") == PROJECT["urls"]["Homepage"]


def test_the_source_is_that_of_this_version() -> None:
    name = PROJECT["name"]
    expected = f"/{name[0]}/{name}/{name.replace('-', '_')}-{__version__}.tar.gz"
    assert field("url").endswith(expected)
    assert re.fullmatch("[0-9a-f]{64}", field("sha256"))


def test_its_words_are_those_of_the_project_within_homebrews_bounds() -> None:
    words = field("desc")
    assert len(words) < 80
    assert not words.endswith(".")
    assert PROJECT["description"].removeprefix("An ").startswith(words)


def test_its_python_is_one_that_the_project_takes() -> None:
    (version,) = re.findall(r'depends_on "python@([0-9.]+)"', FORMULA)
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    assert f'"python{version}"' in block("install")


def test_it_links_and_runs_the_programs_that_there_are() -> None:
    linked = re.findall(r'libexec/"bin/([^"]+)"\n', block("install"))
    assert linked == list(PROJECT["scripts"])
    assert {*re.findall(r'opt_bin/"([^"]+)"', block("service"))} == {*linked}


def test_it_installs_the_tested_versions() -> None:
    """The source distribution, in which it runs, has all that is in git."""
    (name,) = re.findall(r'"--constraint", "([^"]+)"', block("install"))
    assert (ROOT / name).is_file()


def test_the_service_is_started_with_options_that_there_are() -> None:
    words = re.findall(r'"([^"]*)"', block("service").split("keep_alive")[0])
    command, keys = words[1], [word.split("=")[0] for word in words if "=" in word]
    text = CliRunner().invoke(app, [command, "--help"]).output
    for option in (word for word in words if word.startswith("--")):
        assert option in text, option
    assert keys
    for key in keys:
        check_key(key, "formula")


def test_a_service_of_homebrew_keeps_the_same_rules() -> None:
    service = block("service")
    assert "keep_alive successful_exit: false" in service
    assert "throttle_interval 10" in service
    assert "process_type :interactive" in service


def test_blocks_are_closed() -> None:
    """As far as one sees without Ruby."""
    opened = len(re.findall(r"(?m)^\s*(?:class|def)\b|\bdo$", FORMULA))
    assert opened == len(re.findall(r"(?m)^\s*end$", FORMULA))


def test_a_release_writes_version_and_checksum(tmp_path: Path) -> None:
    for name in ("omlx-server.rb", "release"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    sdist = tmp_path / "omlx_server-9.8.7.tar.gz"
    sdist.write_bytes(b"source")
    subprocess.run([sys.executable, str(tmp_path / "release"), str(sdist)], check=True)
    text = (tmp_path / "omlx-server.rb").read_text(encoding="utf-8")
    assert "/omlx_server-9.8.7.tar.gz" in text
    assert f'  sha256 "{hashlib.sha256(b"source").hexdigest()}"\n' in text
    pairs = zip(FORMULA.split("\n"), text.split("\n"), strict=True)
    assert sum(old != new for old, new in pairs) == 2


@pytest.mark.parametrize("name", ["other-1.tar.gz", "omlx_server-1.zip"])
def test_another_file_is_refused(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "release"), str(tmp_path / name)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
