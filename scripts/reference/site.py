"""A hook of MkDocs (mkdocs.yml names it): the decisions are in the navigation by being there."""

from pathlib import Path
from typing import Any

_DECISIONS = "Decisions"


def on_config(config: dict[str, Any]) -> dict[str, Any]:
    """Puts the files of docs/decisions/ where the navigation has their folder."""
    folder = Path(config["docs_dir"]) / "decisions"
    pages = [f"decisions/{path.name}" for path in sorted(folder.glob("[0-9]*.md"))]
    for entry in config["nav"]:
        if _DECISIONS in entry:
            entry[_DECISIONS] = ["decisions/README.md", *pages]
    return config
