"""The command line of `scripts/docs reference`: writes what is not as it should be."""

import argparse
from pathlib import Path

from scripts.reference import config, families
from scripts.reference.pages import pages
from scripts.reference.served import ask, tiny_server

_REPO = Path(__file__).parent.parent.parent


def main() -> None:
    argparse.ArgumentParser(prog="scripts/docs reference", description=__doc__).parse_args()
    with tiny_server() as url:
        served = ask(url)
    folder = _REPO / "docs" / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(served).items():
        _write(folder / name, text)
    _write(_REPO / "config" / "omlx.example.toml", config.example())
    for name, text in families.pages().items():
        path = _REPO / name
        _write(path, families.inserted(path.read_text(encoding="utf-8"), text))


def _write(path: Path, text: str) -> None:
    is_new = not path.is_file() or path.read_text(encoding="utf-8") != text
    if is_new:
        path.write_text(text, encoding="utf-8")
    print(f"{path.relative_to(_REPO)}: {'written' if is_new else 'as it was'}")


if __name__ == "__main__":
    main()
