"""Tests mirror the package: tests of a folder are in the folder of its name."""

from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "omlx_server"
# What is tested over many folders at once, and what tests need.
BESIDE = {
    "architectures",
    "campaigns",
    "clients",
    "cluster",
    "data",
    "docs",
    "packaging",
    "api/encoders",
    "api/images",
    "api/published",
    "compute/portable",
    "service/golden",
    "web",
}
# Tested by the tests of the folder above.
ABOVE = {"compute/hardware"}


def folders(root: Path) -> set[str]:
    found = {path.parent.relative_to(root).as_posix() for path in root.rglob("*.py")}
    return found - {"."}


def test_each_folder_of_the_package_has_one_of_tests() -> None:
    assert folders(PACKAGE) - folders(TESTS) == ABOVE


def test_each_folder_of_tests_has_one_of_the_package() -> None:
    extra = folders(TESTS) - folders(PACKAGE)
    assert not [name for name in extra if not any(f"{name}/".startswith(f"{b}/") for b in BESIDE)]
