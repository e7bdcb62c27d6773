"""pyproject.toml names what the program imports, and config/constraints.txt the tested versions."""

import ast
import os
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = ROOT / "config" / "constraints.txt"
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
AT_RUN_TIME = [*PROJECT["dependencies"], *(r for e in EXTRAS if e != "test" for r in EXTRAS[e])]
# What these modules have is not documented, or moves between minor versions.
PRIVATE = {
    "uvicorn.protocols": "uvicorn",
    "huggingface_hub.utils": "huggingface_hub",
    "llguidance.gbnf_to_lark": "llguidance",
    "jinja2.parser": "jinja2",
    "tokenizers.models": "tokenizers",
    "typer.core": "typer",
    "mlx_lm.models": "mlx-lm",
    "mlx.core": "mlx",
}
# A part of pydantic, which asks for one version of it.
COMES_ALONG = {"pydantic-core"}
DARWIN = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"}
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
PYTHONS = ("3.11", "3.12", "3.13")


@cache
def imported() -> set[str]:
    """Dotted names of the modules of others that the package imports."""
    found: set[str] = set()
    for path in (ROOT / "omlx_server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module))
    own = {"omlx_server", *sys.stdlib_module_names}
    return {name for name in found if name.partition(".")[0] not in own}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_what_is_imported_is_named() -> None:
    """A package that only comes along with another one may leave with it."""
    distributions = packages_distributions()
    known = names(AT_RUN_TIME) | COMES_ALONG
    for head in {name.partition(".")[0] for name in imported()}:
        # Namespaces, as that of opentelemetry, belong to several.
        from_ = {canonicalize_name(name) for name in distributions[head]}
        assert from_ & known, f"{head} comes from {from_}"


@pytest.mark.parametrize(("module", "name"), PRIVATE.items())
def test_private_parts_have_an_upper_bound(module: str, name: str) -> None:
    assert any(f"{found}.".startswith(f"{module}.") for found in imported()), "not imported"
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == canonicalize_name(name):
            assert {s.operator for s in requirement.specifier} & {"<", "=="}, text


# --- The constraints -----------------------------------------------------------------------------


ENVIRONMENTS = [
    {**system, "python_version": python, "python_full_version": f"{python}.9"}
    for system in (DARWIN, LINUX)
    for python in PYTHONS
]


def pinned(environment: dict[str, str]) -> dict[str, str]:
    """Versions by name. Each stands there once for an environment."""
    found: dict[str, str] = {}
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (specifier,) = requirement.specifier
            assert specifier.operator == "=="
            assert canonicalize_name(requirement.name) not in found, line
            found[canonicalize_name(requirement.name)] = specifier.version
    return found


@pytest.mark.parametrize(
    "environment", ENVIRONMENTS, ids=lambda e: f"{e['sys_platform']}-{e['python_version']}"
)
def test_constraints_fit_all_that_is_asked_for(environment: dict[str, str]) -> None:
    """`scripts/lock` writes them anew."""
    versions = pinned(environment)
    for text in (*PROJECT["dependencies"], *(r for extra in EXTRAS.values() for r in extra)):
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name == "pip" or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        assert name in versions, f"{text}: run scripts/lock"
        assert requirement.specifier.contains(versions[name]), f"{text}: run scripts/lock"


# --- scripts/_env.sh, with a Python that only writes down what it is asked ----------------------

PYTHON = """\
#!/usr/bin/env bash
echo "$*" >>asked
if [ -e refuses ] && [[ "$*" == *--constraint* ]]; then echo "ERROR: conflict" >&2; exit 1; fi
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("scripts/_env.sh", "pyproject.toml", "config/constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    return tmp_path


def install(clone: Path, extra: str = "") -> tuple[list[str], str]:
    """What the Python was asked, and what was said."""
    (clone / "asked").unlink(missing_ok=True)
    text = f"set -euo pipefail; source scripts/_env.sh; install_package '{extra}'"
    done = subprocess.run(["bash", "-c", text], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    asked = clone / "asked"
    return (asked.read_text().splitlines() if asked.exists() else []), done.stderr


def test_the_python_that_is_named_is_taken_or_told_about(clone: Path) -> None:
    named = clone / "a b" / "python"
    named.parent.mkdir()
    named.symlink_to(sys.executable)
    text = "set -euo pipefail; source scripts/_env.sh; find_python"
    for python, code in ((named, 0), (clone / "no such", 1)):
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=clone,
            env=os.environ | {"OMLX_PYTHON": str(python)},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, str(python) in done.stdout + done.stderr) == (code, True)


def test_scripts_install_the_tested_versions_once(clone: Path) -> None:
    (asked,), _ = install(clone, "test")
    assert asked.endswith("--constraint config/constraints.txt --editable .[test]")
    assert install(clone, "test")[0] == []
    with (clone / "config" / "constraints.txt").open("a") as file:
        file.write("other==1\n")
    assert len(install(clone, "test")[0]) == 1
    assert install(clone)[0] == [], "it is there with the extra"


def test_constraints_that_lag_behind_are_told_and_left_out(clone: Path) -> None:
    (clone / "refuses").touch()
    asked, said = install(clone)
    assert ["--constraint" in line for line in asked] == [True, False]
    assert "config/constraints.txt can't be installed" in said
    assert "scripts/lock" in said
